"""The worker inside of an actor, without Ray; how many fit on a node; a head that is gone."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stages_for_tests import Lines, Unruly

from shardmill.model.codec import to_plain
from shardmill.model.stage import Stage, unit_to_plain
from shardmill.running import ray as ray_cluster
from shardmill.running.engine import Job
from shardmill.running.ray import ActorWorker, ClusterLost, HeadWatch, count_fitting
from shardmill.shards.ledger import Ledger
from shardmill.storage.text import dump_line


def make_worker(tmp_path: Path, stage: Stage, *, shared: bool = True) -> ActorWorker:
    ledger = Ledger(tmp_path / "out", "run/00000")
    ledger.make_folders()
    if shared:
        ledger.draft_dir.mkdir(parents=True)
    job = Job(
        stage=to_plain(stage),
        out_dir=str(ledger.out_dir),
        token=ledger.token,
        retries=0,
        max_skip_rate=0.0,
    )
    order = {"job": to_plain(job), "path": [], "cwd": os.getcwd()}
    return ActorWorker(dump_line(order), "node-1")


def hear_until(worker: ActorWorker, kind: str) -> list[dict[str, Any]]:
    heard: list[dict[str, Any]] = []
    while not any(message["kind"] == kind for message in heard):
        heard += [json.loads(line) for line in worker.hear(30.0).splitlines()]
    return heard


def test_it_says_hello_works_what_it_is_told_and_says_goodbye(tmp_path: Path) -> None:
    stage = Lines(num_units=3)
    worker = make_worker(tmp_path, stage)
    first = hear_until(worker, "ask")
    assert first[0] == {"kind": "hello", "node": "node-1"}
    worker.tell(b"".join(dump_line({"unit": unit_to_plain(unit)}) for unit in stage.units()))
    worker.tell(dump_line({"end": True}))
    rest = hear_until(worker, "bye")
    assert [message["unit"] for message in rest if message["kind"] == "done"] == [
        unit.name for unit in stage.units()
    ]
    assert all(message["host"] for message in rest if message["kind"] == "start")
    assert len(list((tmp_path / "out" / "receipts").iterdir())) == 3
    assert worker.hear(0.0) == b""


def test_no_unit_is_worked_before_its_start_has_arrived(tmp_path: Path) -> None:
    stage = Lines(num_units=1)
    worker = make_worker(tmp_path, stage)
    hear_until(worker, "ask")
    worker.tell(dump_line({"unit": unit_to_plain(next(stage.units()))}))
    hear_until(worker, "start")
    time.sleep(0.2)  # the answer may be lost with the actor, so the work must not have begun
    assert list((tmp_path / "out" / ".draft" / "run" / "00000").iterdir()) == []
    worker.tell(dump_line({"end": True}))  # or its thread would keep this process from ending
    assert any(message["kind"] == "done" for message in hear_until(worker, "bye"))


def test_an_error_of_ours_is_told(tmp_path: Path) -> None:
    heard = hear_until(
        make_worker(tmp_path, Unruly(notes=tmp_path, deeds={"open": "config"})), "bye"
    )
    assert [m["message"] for m in heard if m["kind"] == "broken"] == ["no such model: name another"]


def test_any_other_error_is_told_with_its_traceback(tmp_path: Path) -> None:
    heard = hear_until(
        make_worker(tmp_path, Unruly(notes=tmp_path, deeds={"open": "raise"})), "bye"
    )
    assert (
        "ValueError: a bug in the stage" in next(m for m in heard if m["kind"] == "died")["trace"]
    )


def test_a_folder_that_is_not_shared_is_named(tmp_path: Path) -> None:
    heard = hear_until(make_worker(tmp_path, Lines(), shared=False), "bye")
    assert "must share the folder" in next(m for m in heard if m["kind"] == "broken")["message"]


@pytest.mark.parametrize(
    ("resources", "needs", "count"),
    [
        ({"CPU": 8.0}, {"CPU": 1.0, "GPU": 0.0}, 8),
        ({"CPU": 8.0}, {"CPU": 3.0, "GPU": 0.0}, 2),
        ({"CPU": 8.0}, {"CPU": 1.0, "GPU": 1.0}, 0),
        ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}, 2),
        ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 0.0, "GPU": 0.5}, 4),
        ({}, {"CPU": 1.0}, 0),
    ],
)
def test_the_scarcest_resource_decides(
    resources: dict[str, float], needs: dict[str, float], count: int
) -> None:
    assert count_fitting(resources, needs) == count


def ray_with_head(address: str) -> Any:
    """As much of Ray as the watch looks at."""
    client = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: False))
    context = SimpleNamespace(gcs_address=address)
    return SimpleNamespace(util=SimpleNamespace(client=client), get_runtime_context=lambda: context)


def test_a_head_that_is_silent_for_a_while_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    watch = HeadWatch(ray_with_head(f"127.0.0.1:{server.getsockname()[1]}"))
    assert watch.is_there()
    server.close()
    assert not watch.is_there(), "it may come back"
    monkeypatch.setattr(ray_cluster, "HEAD_GRACE_S", 0.0)
    with pytest.raises(ClusterLost, match="run the same command"):
        watch.is_there()
