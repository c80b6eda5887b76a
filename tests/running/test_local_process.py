"""A worker process as its driver sees it."""

from __future__ import annotations

import signal
from pathlib import Path

from stages_for_tests import Lines

from shardmill.model.codec import to_plain
from shardmill.running.job import Job
from shardmill.running.local import LOG_TAIL_BYTES, WorkerProcess, describe_exit
from shardmill.shards.ledger import Ledger


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
