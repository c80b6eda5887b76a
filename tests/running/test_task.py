"""Tasks side by side on one folder: killed, suspended, out of time; always the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from drivers import is_alive, signal_quietly, snapshot
from stages_for_tests import Lines, Noise, Unruly
from start_task import start_task

from shardmill.errors import LockedError, StaleError
from shardmill.model.codec import to_plain
from shardmill.model.stage import Stage
from shardmill.running.engine import Job, read_job, write_job
from shardmill.running.events import read_log
from shardmill.running.lock import LockTiming
from shardmill.running.runner import run_stage
from shardmill.running.task import run_task
from shardmill.shards.ledger import open_manifest
from shardmill.stages.check.folder import check_folder
from shardmill.storage.path import as_path

FAST = LockTiming(beat_s=0.1, stale_s=1.0)


def plan(stage: Stage, out: Path | str, **fields: int) -> Path:
    """Plan a folder without doing a unit, and return the job for its tasks."""
    stopped = run_stage(stage, out, workers=0, part=(1, 10**9))
    assert stopped.num_done == 0
    settings = {"retries": 1, "max_skip_rate": 0.0} | fields
    return write_job(Job(stage=to_plain(stage), out_dir=str(out), token="", **settings))  # type: ignore[arg-type]


def wait_for_receipts(out: Path, count: int, task: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while len(list(out.glob("receipts/*"))) < count and task.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def times_begun(out: Path) -> Counter[str]:
    logs = (out / "events").glob("*.jsonl")
    return Counter(e.event.unit for log in logs for e in read_log(log) if e.event.kind == "start")


def test_tasks_share_the_units_and_the_last_one_collects(tmp_path: Path) -> None:
    stage, out = Lines(num_units=24, sleep_s=0.05), tmp_path / "out"
    run_stage(stage, tmp_path / "calm", workers=0)
    job = plan(stage, out)
    tasks = [start_task(job) for _ in range(3)]
    ends = [task.communicate() for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0, 0], ends
    assert sum(int(printed.split()[0]) for printed, _ in ends) == 24
    assert set(times_begun(out).values()) == {1}, "a unit was done twice without a fault"
    assert without_jobs(snapshot(out)) == snapshot(tmp_path / "calm")
    assert not (out / "claims").exists() and list((out / "locks").iterdir()) == []
    assert list((out / ".draft").iterdir()) == []


def without_jobs(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if not name.startswith("jobs/")}


def test_what_a_killed_task_held_is_done_by_another(tmp_path: Path) -> None:
    stage, out = Lines(num_units=12, sleep_s=0.1), tmp_path / "out"
    job = plan(stage, out)
    first = start_task(job)
    wait_for_receipts(out, 3, first)
    signal_quietly(-first.pid, signal.SIGKILL)
    first.communicate()
    assert run_task(read_job(job), workers=2, timing=FAST).run.complete
    # The one at work, and those whose commit was on its way.
    assert sum(times_begun(out).values()) <= 12 + 3
    assert list((out / "locks").iterdir()) == [] and list((out / ".draft").iterdir()) == []


def test_a_suspended_task_loses_its_drafts_and_does_no_harm(tmp_path: Path) -> None:
    """It wakes up when others have done its unit; its drafts are gone, so it commits nothing."""
    stage, out = Noise(num_units=8, sleep_s=0.2), tmp_path / "out"
    job = plan(stage, out)
    sleeper = start_task(job)
    wait_for_receipts(out, 2, sleeper)
    signal_quietly(-sleeper.pid, signal.SIGSTOP)
    try:
        heir = start_task(job)
        _, errors = heir.communicate(timeout=60)
        assert heir.returncode == 0, errors
        before = snapshot(out)
    finally:
        signal_quietly(-sleeper.pid, signal.SIGCONT)
    _, errors = sleeper.communicate(timeout=60)
    assert sleeper.returncode != 0 and b"took this one for dead" in errors
    assert snapshot(out) == before and check_folder(out).problems == ()


def test_a_task_whose_time_is_nearly_over_finishes_what_it_began(tmp_path: Path) -> None:
    stage, out = Lines(num_units=30, sleep_s=0.2), tmp_path / "out"
    job = plan(stage, out)
    task = start_task(job)
    wait_for_receipts(out, 2, task)
    os.kill(task.pid, signal.SIGUSR1)
    printed, errors = task.communicate(timeout=60)
    num_done, num_left, out_of_time = printed.decode().split()
    assert out_of_time == "True" and int(num_done) + int(num_left) == 30, errors
    assert sum(times_begun(out).values()) == int(num_done)
    assert run_task(read_job(job), workers=2, timing=FAST).run.num_done == int(num_left)


def test_a_task_that_must_go_gives_its_units_back(tmp_path: Path) -> None:
    stage, out = Lines(num_units=6, sleep_s=30), tmp_path / "out"
    job = plan(stage, out)
    task = start_task(job)
    deadline = time.monotonic() + 60
    while not times_begun(out) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(task.pid, signal.SIGTERM)
    task.communicate(timeout=60)
    assert [path.read_text().strip() for path in (out / "claims").iterdir()] == ["free"]
    assert not is_alive(task.pid) and list((out / "locks").iterdir()) == []


def test_a_unit_that_fails_is_not_tried_by_every_task(tmp_path: Path) -> None:
    notes, out = tmp_path / "notes", tmp_path / "out"
    notes.mkdir()
    job = plan(Unruly(notes=notes, deeds={"00002": "raise", "00004": "kill"}), out, retries=1)
    for expected in (["00002", "00004"], []):
        report = run_task(read_job(job), workers=2, timing=FAST)
        assert [unit for unit, _ in report.run.failures] == expected
        assert not report.run.complete and report.num_left == 0
    assert Counter((notes / "worked").read_text().split())["00002"] == 2
    assert "was killed by SIGKILL" in (out / "failures" / "00004.json").read_text()


def test_a_local_run_refuses_a_folder_with_tasks_and_the_other_way_round(tmp_path: Path) -> None:
    stage, out = Lines(num_units=40, sleep_s=0.2), tmp_path / "out"
    job = plan(stage, out)
    task = start_task(job)
    wait_for_receipts(out, 1, task)
    with pytest.raises(LockedError, match=f"process {task.pid}"):
        run_stage(stage, out, workers=0)
    signal_quietly(-task.pid, signal.SIGKILL)
    task.communicate()
    assert run_stage(stage, out, workers=2).complete, "the dead task is taken over"
    assert not (out / "claims").exists()


def test_a_folder_that_is_planned_anew_is_refused_to_old_jobs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = plan(Lines(num_units=3), out)
    (out / "stage.json").unlink()
    with pytest.raises(StaleError, match="no longer"):
        run_task(read_job(job), workers=1)
    run_stage(Lines(num_units=4), out, workers=0)
    with pytest.raises(StaleError, match="no longer"):
        run_task(read_job(job), workers=1)


def test_tasks_share_a_folder_in_a_store(store_url: str, tmp_path: Path) -> None:
    stage = Lines(num_units=6)
    job = plan(stage, store_url)
    tasks = [start_task(job) for _ in range(2)]
    ends = [task.communicate(timeout=120) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], ends
    assert sum(int(printed.split()[0]) for printed, _ in ends) == 6
    assert open_manifest(as_path(store_url)).num_in == 30
    assert list(as_path(f"{store_url}/claims").iterdir()) == []
    run_stage(stage, tmp_path / "calm", workers=0)
    manifest = as_path(f"{store_url}/manifest.json").read_bytes()
    assert manifest == (tmp_path / "calm" / "manifest.json").read_bytes()
