"""Working off units: every executor ends here."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
from stages_for_tests import Lines, Unruly

from shardmill.errors import FormatError, SampleError, UnitFailed
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.manifest import stage_digest
from shardmill.model.stage import Draft, Stage, Tally, Unit
from shardmill.run.events import Event
from shardmill.run.job import Job, describe, is_fatal, may_pass, work_off
from shardmill.shards.ledger import Ledger
from shardmill.storage.atomic import Disk
from shardmill.storage.text import dump_line, parse_json


def make_ledger(tmp_path: Path, disk: Disk | None = None) -> Ledger:
    ledger = Ledger(tmp_path / "out", "run", disk or Disk())
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    return ledger


def work_all(stage: Stage, ledger: Ledger, *, retries: int = 0) -> list[Event]:
    events: list[Event] = []
    work_off(
        stage,
        stage.units(),
        ledger,
        retries=retries,
        max_skip_rate=0.0,
        on_event=events.append,
    )
    return events


def unruly(tmp_path: Path, deeds: dict[str, str]) -> Unruly:
    (tmp_path / "notes").mkdir()
    return Unruly(notes=tmp_path / "notes", deeds=deeds)


def test_every_unit_is_done_and_told(tmp_path: Path) -> None:
    ledger, stage = make_ledger(tmp_path), Lines(num_units=5)
    events = work_all(stage, ledger)
    assert sorted(e.unit for e in events if e.kind == "done") == [u.name for u in stage.units()]
    assert ledger.pending([*stage.units()], stage_digest(stage)) == []
    assert sum(event.num_in for event in events) == 25
    assert all(event.num_bytes > 0 for event in events if event.kind == "done")


def test_a_failure_is_kept_with_its_traceback_and_leaves_no_files(tmp_path: Path) -> None:
    ledger, stage = make_ledger(tmp_path), unruly(tmp_path, {"00001": "raise"})
    failed = [event for event in work_all(stage, ledger) if event.kind == "failed"]
    assert [event.unit for event in failed] == ["00001"] and not failed[0].fatal
    record = json.loads((tmp_path / "out/failures/00001.json").read_text())
    assert record["message"] == "ValueError: a bug in the stage"
    assert "stages_for_tests.py" in record["traceback"]
    assert not (tmp_path / "out/shards/00001.txt").exists()
    assert all(next(path.iterdir(), None) is None for path in ledger.draft_dir.iterdir())


@pytest.mark.parametrize(("deed", "tries"), [("raise", 4), ("config", 1), ("fill disk", 1)])
def test_only_what_may_pass_is_tried_again(tmp_path: Path, deed: str, tries: int) -> None:
    ledger, stage = make_ledger(tmp_path), unruly(tmp_path, {"00002": deed})
    work_all(stage, ledger, retries=3)
    worked = (tmp_path / "notes" / "worked").read_text().split()
    assert worked.count("00002") == tries and worked.count("00003") == 1


class Forgetful(Unruly):
    """Announces a file in one unit, and does not write it."""

    def work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        super().work(unit, draft, tally)
        if unit.name == "00002":
            draft.file(unit.name, "idx")


def test_a_file_that_is_missing_fails_its_unit_and_no_other(tmp_path: Path) -> None:
    ledger, stage = make_ledger(tmp_path), Forgetful(notes=tmp_path)
    events = work_all(stage, ledger, retries=3)
    failed = [event for event in events if event.kind == "failed"]
    assert [event.unit for event in failed] == ["00002"]
    assert "announced the file 00002.idx" in failed[0].message
    assert [unit.name for unit in ledger.pending([*stage.units()], stage_digest(stage))] == [
        "00002"
    ]
    assert all(next(path.iterdir(), None) is None for path in ledger.draft_dir.iterdir())


class Robbed(Unruly):
    """Loses the draft of one unit, as a run does that others took for dead."""

    def work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        super().work(unit, draft, tally)
        if unit.name == "00002":
            shutil.rmtree(draft.dir)


def test_a_draft_that_is_gone_fails_its_unit_and_no_other(tmp_path: Path) -> None:
    events = work_all(Robbed(notes=tmp_path), make_ledger(tmp_path))
    assert [event.unit for event in events if event.kind == "failed"] == ["00002"]
    assert len([event for event in events if event.kind == "done"]) == 5


class FailingDisk(Disk):
    """Fails at one of its calls."""

    def __init__(self, call: str, number: int) -> None:
        self.call, self.number = call, number

    def _maybe_fail(self, call: str) -> None:
        if call == self.call:
            raise OSError(self.number, "it broke")

    def sync_file(self, path: Path) -> None:
        self._maybe_fail(f"sync {path.suffix}")
        super().sync_file(path)

    def rename(self, source: Path, target: Path) -> None:
        self._maybe_fail(f"rename to {target.parent.name}")
        super().rename(source, target)

    def sync_dir(self, path: Path) -> None:
        self._maybe_fail(f"sync {path.name}")
        super().sync_dir(path)


@pytest.mark.parametrize(
    "call", ["sync .txt", "rename to shards", "sync shards", "sync .receipt", "rename to receipts"]
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_during_the_commit_fails_the_units(
    tmp_path: Path, call: str, number: int
) -> None:
    ledger, stage = make_ledger(tmp_path), Lines(num_units=4)
    broken = Ledger(ledger.out_dir, "run", FailingDisk(call, number))
    events = work_all(stage, broken)
    failed = [event for event in events if event.kind == "failed"]
    assert len(failed) == 4 and all("it broke" in event.message for event in failed)
    assert all(event.fatal == (number == errno.ENOSPC) for event in failed)
    assert list(ledger.receipts_dir.iterdir()) == []
    work_all(stage, ledger)
    assert ledger.pending([*stage.units()], stage_digest(stage)) == []
    assert list(ledger.read_failures()) == []


def test_a_job_travels_as_json() -> None:
    stage = Lines(num_units=3, salt="ü\udcff")
    job = Job(stage=to_plain(stage), out_dir="/x", token="t", retries=1, max_skip_rate=0.5)
    again = from_plain(parse_json(dump_line(to_plain(job))), Job)
    assert again == job
    assert again.load_stage() == stage


def test_errors_are_described_in_one_line() -> None:
    assert describe(ValueError("a\n  b")) == "ValueError: a b"
    assert describe(FormatError("is bad", path="x", offset=3)) == "x, at byte 3: is bad"
    assert describe(SampleError("not an image")) == "not an image"


def test_which_errors_end_the_run_and_which_may_pass() -> None:
    assert is_fatal(OSError(errno.ENOSPC, "")) and is_fatal(OSError(errno.EROFS, ""))
    assert not is_fatal(OSError(errno.EIO, "")) and not is_fatal(ValueError())
    assert may_pass(ConnectionError()) and not may_pass(UnitFailed("x"))
