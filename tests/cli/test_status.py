"""`status` of a folder whose tasks are in the queue; a small script plays squeue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from invoked import invoke, invoke_json
from stages_for_tests import Lines

from shardmill.running.plan import store_plan
from shardmill.shards.ledger import Ledger

JOBS = "1,2,7"


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with units and two submissions, and nothing but `tmp_path/bin` to find squeue in."""
    out, stage = tmp_path / "out", Lines(num_units=4)
    ledger = Ledger(out, "test")
    ledger.make_folders()
    ledger.make_drafts()
    store_plan(ledger, stage, stage.inputs(), list(stage.units()))
    (out / "jobs").mkdir()
    for name, ids in (("a", ["1", "2"]), ("b", ["7"])):
        (out / "jobs" / f"{name}.slurm").write_text(json.dumps({"jobs": ids}))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return out


def put_squeue(planned: Path, body: str) -> None:
    path = planned.parent / "bin" / "squeue"
    path.write_text(f'#!/bin/sh\n[ "$4" = {JOBS} ] || exit 9\n{body}\n')
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["PENDING|Priority", "RUNNING|None"], "  1 task queued in SLURM: Priority\n"),
        (["PENDING|Priority", "PENDING|Resources"], "  2 tasks queued in SLURM: Priority, Res"),
        (["PENDING|None"], "  1 task queued in SLURM\n"),
    ],
)
def test_tasks_that_wait_are_told_with_the_reason(
    planned: Path, lines: list[str], says: str
) -> None:
    put_squeue(planned, "\n".join(f"echo '{line}'" for line in lines))
    assert says in invoke("status", planned).output


def test_what_is_not_known_is_not_told(planned: Path) -> None:
    assert "SLURM" not in invoke("status", planned).output
    assert invoke_json("status", planned)["queued"] is None
    put_squeue(planned, "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert "SLURM does not answer" in invoke("status", planned).output
    put_squeue(planned, "echo 'RUNNING|None'")
    assert "SLURM" not in invoke("status", planned).output
