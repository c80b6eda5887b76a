"""The worker's side of the pipes, spoken by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from stages_for_tests import Lines

from shardmill.machine import open_note
from shardmill.model.codec import to_plain
from shardmill.model.stage import Stage, unit_to_plain
from shardmill.running.engine import Job
from shardmill.running.worker import EXIT_ORPHANED, read_lines
from shardmill.shards.ledger import Ledger
from shardmill.storage.text import dump_line, parse_json

SUPPORT = str(Path(__file__).parents[1] / "support")


class Peer:
    """A worker process and the two pipes to it."""

    def __init__(self, tmp_path: Path, stage: Stage) -> None:
        ledger = Ledger(tmp_path / "out", "run")
        ledger.make_folders()
        ledger.draft_dir.mkdir()
        read_fd, write_fd = os.pipe()
        note_fd = open_note()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shardmill.running.worker", str(write_fd), str(note_fd)],
            stdin=subprocess.PIPE,
            pass_fds=(write_fd, note_fd),
        )
        os.close(write_fd)
        os.close(note_fd)
        self._lines = read_lines(read_fd)
        job = Job(
            stage=to_plain(stage),
            out_dir=str(ledger.out_dir),
            token="run",
            retries=0,
            max_skip_rate=0.0,
        )
        self.send({"job": to_plain(job), "path": [SUPPORT]})

    def send(self, message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(dump_line(message))
        self.process.stdin.flush()

    def hear(self) -> Any:
        return parse_json(next(self._lines))

    def hear_rest(self) -> list[Any]:
        return [parse_json(line) for line in self._lines]


def test_it_asks_works_reports_and_ends(tmp_path: Path) -> None:
    stage = Lines(num_units=2)
    worker = Peer(tmp_path, stage)
    assert worker.hear() == {"kind": "ask", "count": 1}
    for unit in stage.units():
        worker.send({"unit": unit_to_plain(unit)})
    worker.send({"end": True})
    kinds = [message["kind"] for message in worker.hear_rest()]
    assert kinds.count("start") == kinds.count("done") == 2
    assert worker.process.wait(30) == 0
    assert len(list((tmp_path / "out" / "receipts").iterdir())) == 2


def test_it_exits_at_once_when_the_driver_is_gone(tmp_path: Path) -> None:
    worker = Peer(tmp_path, Lines(num_units=1, sleep_s=60))
    assert worker.hear() == {"kind": "ask", "count": 1}
    worker.send({"unit": unit_to_plain(next(Lines(num_units=1).units()))})
    assert worker.hear()["kind"] == "start"
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert worker.process.wait(30) == EXIT_ORPHANED


def test_quitting_ends_the_unit_at_work(tmp_path: Path) -> None:
    worker = Peer(tmp_path, Lines(num_units=1, sleep_s=60))
    worker.hear()
    worker.send({"unit": unit_to_plain(next(Lines(num_units=1).units()))})
    assert worker.hear()["kind"] == "start"
    worker.send({"quit": True})
    assert worker.process.wait(30) == 0
    assert list((tmp_path / "out" / "receipts").iterdir()) == []


def test_a_stage_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    worker = Peer(tmp_path, Lines())
    worker.process.kill()
    worker.process.wait()

    class Unknown(Peer):
        def send(self, message: Any) -> None:
            message["job"]["stage"]["kind"] = "no.such:Stage"
            super().send(message)

    heard = Unknown(tmp_path / "other", Lines()).hear()
    assert heard["kind"] == "broken" and "no.such" in heard["message"]


def test_lines_come_whole_however_they_are_cut() -> None:
    read_fd, write_fd = os.pipe()
    for piece in (b"ab", b"c\nde", b"f\n\n", b"rest without end"):
        os.write(write_fd, piece)
    os.close(write_fd)
    assert list(read_lines(read_fd)) == [b"abc", b"def", b""]
    os.close(read_fd)
