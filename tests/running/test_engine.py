"""Engines from outside can do all that built-in ones can, and what an engine cannot do is said."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
from drivers import signal_quietly, snapshot, start_driver
from engines_for_tests import Queue, Threads
from invoked import invoke, invoke_json
from stages_for_tests import Lines, Unruly

from shardmill.api.values import to_engine
from shardmill.errors import ConfigError
from shardmill.model.codec import build, to_plain
from shardmill.plugins import ENGINES
from shardmill.running.events import Event
from shardmill.running.runner import preview_stage, run_stage

STAGE = Lines(num_units=40, num_samples=5, sleep_s=0.02)


def test_an_engine_from_outside_is_named_on_the_command_line() -> None:
    assert to_engine("engines_for_tests:Threads,threads=3") == Threads(threads=3)
    with pytest.raises(ConfigError, match="threads must be at least 1"):
        to_engine("engines_for_tests:Threads,threads=0")


def test_a_run_is_killed_and_goes_on_to_the_bytes_of_any_other_engine(tmp_path: Path) -> None:
    rng, out, num_kills = random.Random(0), tmp_path / "out", 0
    run_stage(STAGE, tmp_path / "calm", workers=0)
    while num_kills < 4 and not (out / "manifest.json").exists():
        driver = start_driver(STAGE, out, on=to_plain(Threads(threads=3)), retries=1000)
        num_wanted = len(list(out.glob("receipts/*"))) + rng.randint(1, 6)
        while driver.poll() is None and len(list(out.glob("receipts/*"))) < num_wanted:
            time.sleep(0.002)
        signal_quietly(-driver.pid, signal.SIGKILL)
        driver.communicate()
        num_kills += 1
    events: list[Event] = []
    report = run_stage(STAGE, out, on=Threads(), on_event=events.append)
    assert report.complete and report.num_done_before > 0
    assert snapshot(out) == snapshot(tmp_path / "calm")
    assert sum(event.kind == "done" for event in events) == report.num_done
    assert list((out / ".draft").iterdir()) == [] and list((out / "locks").iterdir()) == []


def test_a_stop_signal_and_a_full_disk_reach_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    slow = Lines(num_units=400, sleep_s=0.1)
    driver = start_driver(slow, out, on=to_plain(Threads(threads=2)))
    while driver.poll() is None and not list(out.glob("receipts/*")):
        time.sleep(0.01)
    driver.send_signal(signal.SIGTERM)
    printed, _ = driver.communicate(timeout=60)
    assert driver.returncode == 128 + signal.SIGTERM and b"run the same command" in printed
    notes = tmp_path / "notes"
    notes.mkdir()
    full = Unruly(notes=notes, deeds={"00001": "fill disk"}, num_units=40)
    report = run_stage(full, tmp_path / "full", on=Threads(threads=1))
    assert report.num_done <= 2 and [unit for unit, _ in report.failures] == ["00001"]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "row {n}"}}\n' for n in range(9)))
    return tmp_path / "rows.jsonl"


def test_commands_ask_it_for_what_it_can_do(tmp_path: Path, rows: Path) -> None:
    note, out = tmp_path / "queue", tmp_path / "out"
    on = f"engines_for_tests:Queue,file={note}"
    words = ("ingest", rows, out, "--per-shard", 3, "--on", on)
    assert invoke(*words, "--workers", 7, "--dry-run").output == "would queue out for 7 workers\n"
    assert not out.exists()
    invoke(*words, "--no-wait")
    assert note.read_text() == "3 False"
    assert "3 tasks queued in the file: it is Sunday" in invoke("status", out, "--on", on).output
    queued = invoke_json("status", out, "--on", on)["queued"]
    assert queued == {"num_tasks": 3, "why": "it is Sunday"}


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_engine_previews_and_submits_or_says_that_it_does_not(
    tmp_path: Path, name: str
) -> None:
    engine = build(ENGINES, {"kind": name})
    try:
        text = preview_stage(Lines(), tmp_path / "out", on=engine)
        assert text.startswith("#!") and engine.without_waiting() != engine
    except ConfigError as refusal:
        assert "submits nothing" in str(refusal)
        with pytest.raises(ConfigError, match="submits nothing"):
            engine.without_waiting()
    assert engine.queue_state(tmp_path) is None, "nothing was submitted for this folder"
    assert not (tmp_path / "out").exists()


def test_a_task_that_runs_out_of_time_asks_its_engine_for_another_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Path
) -> None:
    from shardmill.running.engine import Job, write_job
    from shardmill.running.task import ClaimedUnits

    note, out = tmp_path / "queue", tmp_path / "out"
    invoke("ingest", rows, out, "--per-shard", 3, "--part", "1/99999")
    stage = json.loads((out / "stage.json").read_text())["stage"]
    job = Job(stage=stage, out_dir=str(out), token="", retries=1, max_skip_rate=0.1)
    monkeypatch.setattr(ClaimedUnits, "take", lambda self, count: self.close() or [])
    told = invoke("work", write_job(job), "--requeue", f"engines_for_tests:Queue,file={note}")
    assert "another turn" in told.output and note.read_text() == "requeued"
    assert Queue(file=note).requeue()
