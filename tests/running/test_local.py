"""Worker processes that print, raise, hang, crash and die; and drivers that die."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from drivers import children_of, is_alive, signal_quietly, start_driver
from stages_for_tests import Lines, Unruly

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.codec import to_plain
from shardmill.running.engine import Job
from shardmill.running.events import Event
from shardmill.running.local import LOG_TAIL_BYTES, WorkerProcess, describe_exit
from shardmill.running.progress import RunReport
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import Ledger


def run_unruly(tmp_path: Path, deeds: dict[str, str], **options: int) -> RunReport:
    notes = tmp_path / "notes"
    notes.mkdir(exist_ok=True)
    return run_stage(Unruly(notes=notes, deeds=deeds), tmp_path / "out", **{"workers": 2} | options)


def times_worked(tmp_path: Path, unit: str) -> int:
    return (tmp_path / "notes" / "worked").read_text().split().count(unit)


@pytest.mark.parametrize(
    ("deed", "says"),
    [
        ("kill", "was killed by SIGKILL"),
        ("segfault", "was killed by SIGSEGV"),
        ("crash in a sample", "was killed by SIGBUS; it was at sample 'odd'"),
        ("exit", "ended with status 7"),
    ],
)
def test_a_worker_that_dies_is_named_and_the_others_go_on(
    tmp_path: Path, deed: str, says: str
) -> None:
    report = run_unruly(tmp_path, {"00002": deed}, retries=1)
    assert [unit for unit, _ in report.failures] == ["00002"]
    assert says in report.failures[0][1]
    assert report.num_done == 5 and not report.complete
    assert times_worked(tmp_path, "00002") == 2
    failure = json.loads((tmp_path / "out" / "failures" / "00002.json").read_text())
    assert says in failure["message"]
    if deed == "segfault":
        assert "string_at" in failure["traceback"]


@pytest.mark.parametrize("deed", ["kill once", "segfault once", "raise once"])
def test_a_unit_is_tried_again_within_retries(tmp_path: Path, deed: str) -> None:
    report = run_unruly(tmp_path, {"00001": deed}, retries=1)
    assert report.complete and report.num_done == 6
    assert list((tmp_path / "out" / "failures").iterdir()) == []


def test_without_retries_a_unit_is_tried_once(tmp_path: Path) -> None:
    report = run_unruly(tmp_path, {"00001": "kill once", "00002": "raise once"}, retries=0)
    assert [unit for unit, _ in report.failures] == ["00001", "00002"]
    again = run_unruly(tmp_path, {"00001": "kill once", "00002": "raise once"}, retries=0)
    assert again.complete and again.num_done == 2 and again.num_done_before == 4


def test_what_a_stage_prints_does_not_reach_the_protocol(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = run_unruly(tmp_path, {"00000": "shout", "00003": "shout"})
    assert report.complete and report.num_done == 6
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_ours_in_open_ends_the_run_with_its_message(
    tmp_path: Path, workers: int
) -> None:
    with pytest.raises(ConfigError, match="no such model"):
        run_unruly(tmp_path, {"open": "config"}, workers=workers)


def test_a_worker_that_cannot_start_ends_the_run_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError, match=r"ended with status 1 [\s\S]*a bug in the stage"):
        run_unruly(tmp_path, {"open": "raise"})
    with pytest.raises(ShardmillError, match="SIGKILL"):
        run_unruly(tmp_path, {"open": "kill"})


def test_a_worker_that_could_not_start_the_first_time_is_replaced(tmp_path: Path) -> None:
    assert run_unruly(tmp_path, {"open": "kill once"}, retries=1).complete


@pytest.mark.parametrize("deed", ["fill disk", "read-only"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_full_disk_stops_the_run(tmp_path: Path, workers: int, deed: str) -> None:
    report = run_unruly(tmp_path, {"00001": deed}, workers=workers, retries=5)
    assert [unit for unit, _ in report.failures] == ["00001"]
    assert report.num_done <= 2 and not report.complete
    assert times_worked(tmp_path, "00001") == 1


def test_units_are_handed_out_in_order(tmp_path: Path) -> None:
    events: list[Event] = []
    stage = Lines(num_units=30, sleep_s=0.001)
    run_stage(stage, tmp_path / "out", workers=3, on_event=events.append)
    order = [event.unit for event in events if event.kind == "start"]
    by_worker: dict[int, list[str]] = {}
    for event in events:
        if event.kind == "start":
            by_worker.setdefault(event.pid, []).append(event.unit)
    assert sorted(order) == [unit.name for unit in stage.units()]
    assert all(units == sorted(units) for units in by_worker.values())


def wait_for_workers(driver_pid: int, out: Path, num_workers: int) -> list[int]:
    for _ in range(400):
        workers = children_of(driver_pid)
        if len(workers) == num_workers and list((out / "receipts").glob("*.json")):
            return workers
        time.sleep(0.05)
    raise AssertionError("the workers did not start")


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlive their driver"
        time.sleep(0.02)


def test_workers_exit_when_their_driver_is_killed(tmp_path: Path) -> None:
    driver = start_driver(Lines(num_units=500, sleep_s=0.1), tmp_path / "out", workers=2)
    workers = wait_for_workers(driver.pid, tmp_path / "out", 2)
    signal_quietly(driver.pid, signal.SIGKILL)
    driver.communicate()
    wait_until_gone(workers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_signal_ends_the_run_politely(
    tmp_path: Path, number: signal.Signals, workers: int
) -> None:
    out, notes = tmp_path / "out", tmp_path / "notes"
    notes.mkdir()
    stage = Unruly(notes=notes, deeds={f"{i:05d}": "sleep" for i in range(3, 40)}, num_units=40)
    driver = start_driver(stage, out, workers=workers)
    deadline = time.monotonic() + 60
    while len(list(out.glob("receipts/*"))) < 3 or times_worked(tmp_path, "00003") == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(driver.pid, number)
    printed, errors = driver.communicate(timeout=60)
    assert driver.returncode == 128 + number, errors
    assert b"run the same command again" in printed
    assert len(list((out / "receipts").iterdir())) == 3
    assert list((out / ".draft").iterdir()) == []
    assert list((out / "locks").iterdir()) == []


def start(tmp_path: Path) -> WorkerProcess:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    job = Job(
        stage=to_plain(Lines()),
        out_dir=str(ledger.out_dir),
        token="run",
        retries=0,
        max_skip_rate=0.0,
    )
    return WorkerProcess.start(job, 0)


def read_all(worker: WorkerProcess) -> list[str]:
    kinds = []
    while (messages := worker.read()) is not None:
        kinds += [message["kind"] for message in messages]
    return kinds


def test_it_asks_and_ends_when_told(tmp_path: Path) -> None:
    worker = start(tmp_path)
    assert worker.read() == [{"kind": "ask", "count": 1}]
    worker.send({"end": True})
    assert read_all(worker) == []
    assert worker.reap().cause == "ended with status 0"


def test_a_killed_one_closes_its_pipe_and_says_how(tmp_path: Path) -> None:
    worker = start(tmp_path)
    worker.read()
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait()
    worker.send({"unit": {}})
    assert read_all(worker) == []
    assert worker.reap().cause.startswith("was killed by SIGKILL")


def test_the_end_of_a_long_log_is_kept(tmp_path: Path) -> None:
    worker = start(tmp_path)
    worker.process.kill()
    worker.log_path.write_bytes(b"\xff" * 10_000 + b"\nlast words\n")
    tail = worker.reap().log_tail
    assert tail.endswith("last words") and len(tail) <= LOG_TAIL_BYTES


def test_ends_are_described() -> None:
    assert describe_exit(3) == "ended with status 3"
    assert describe_exit(-signal.SIGSEGV) == "was killed by SIGSEGV"
