"""The worker inside of an actor, without Ray: it is an object that is told and heard."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from stages_for_tests import Lines, Unruly

from shardmill.model.codec import to_plain
from shardmill.model.stage import Stage, unit_to_plain
from shardmill.run.job import Job
from shardmill.run.ray.actors import RayWorker
from shardmill.shards.ledger import Ledger
from shardmill.storage.text import dump_line


def make_worker(tmp_path: Path, stage: Stage, *, shared: bool = True) -> RayWorker:
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
    return RayWorker(dump_line(order), "node-1")


def hear_until(worker: RayWorker, kind: str) -> list[dict[str, Any]]:
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
