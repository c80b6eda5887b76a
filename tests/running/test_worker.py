"""Working off units: every engine ends here; a worker asks for a few when units are quick."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stages_for_tests import Lines, Nothing, Unruly

from shardmill.errors import FormatError, SampleError, UnitFailed
from shardmill.model.codec import to_plain
from shardmill.model.manifest import stage_digest
from shardmill.model.stage import Draft, Stage, Tally, Unit, unit_to_plain
from shardmill.running.engine import Job
from shardmill.running.events import Event, is_fatal
from shardmill.running.worker import (
    MAX_ASKED,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    QUICK_S,
    Committer,
    DraftFolders,
    Finished,
    ReceivedUnits,
    Watch,
    describe,
    may_pass,
    work_job,
)
from shardmill.shards.ledger import Ledger
from shardmill.storage.files import Disk


def make_ledger(tmp_path: Path, disk: Disk | None = None) -> Ledger:
    ledger = Ledger(tmp_path / "out", "run", disk or Disk())
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    return ledger


@dataclass(frozen=True, kw_only=True)
class JobOnDisk(Job):
    """A job whose ledger writes to a disk that may fail."""

    disk: Disk

    @property
    def ledger(self) -> Ledger:
        return Ledger(Path(self.out_dir), self.token, self.disk)


def work_all(stage: Stage, ledger: Ledger, *, retries: int = 0) -> list[Event]:
    events: list[Event] = []
    out_dir, token = str(ledger.out_dir), ledger.token
    job = JobOnDisk(
        stage=to_plain(stage),
        out_dir=out_dir,
        token=token,
        retries=retries,
        max_skip_rate=0.0,
        disk=ledger.disk,
    )
    work_job(job, stage, stage.units(), events.append)
    return events


def unruly(tmp_path: Path, deeds: dict[str, str]) -> Unruly:
    (tmp_path / "notes").mkdir()
    return Unruly(notes=tmp_path / "notes", deeds=deeds)


def test_a_long_unit_tells_how_far_it_is_ever_less_often() -> None:
    events: list[Event] = []
    watch, tally = Watch(events.append), Tally()
    with watch.over(Unit(name="a", input={}, num_samples=9000), tally):
        began = time.monotonic()
        for second in range(600):
            tally.num_in += 10
            watch.look(began + second)
    watch.look(began + 9999)  # nothing is at work now
    times = [event.num_in // 10 for event in events]
    assert times[:4] == [3, 7, 15, 31] and len(times) == 22
    assert {(e.kind, e.unit, e.num_samples) for e in events} == {("working", "a", 9000)}


@dataclass(frozen=True)
class Slow(Nothing):
    """A stage whose unit ends when somebody has heard of it."""

    def open(self) -> Any:
        def work(unit: Unit, draft: Draft, tally: Tally) -> None:
            tally.num_begun = 7
            assert heard.wait(10)
            draft.file(unit.name, "x").touch()
            draft.finish(unit.name, num_samples=0)

        return nullcontext(work)


heard = threading.Event()


def test_a_unit_at_work_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.running.worker.FIRST_WATCH_S", 0.01)
    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if event.kind == "working":
            heard.set()

    ledger = make_ledger(tmp_path)
    job = Job(stage={}, out_dir=str(ledger.out_dir), token="run", retries=0, max_skip_rate=0)
    work_job(job, Slow(num_units=1), [Unit(name="a", input={})], on_event)
    kinds = [event.kind for event in events]
    assert kinds[0] == "start" and kinds[-1] == "done" and "working" in kinds
    assert events[1].num_in == 7


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


def test_errors_are_described_in_one_line() -> None:
    assert describe(ValueError("a\n  b")) == "ValueError: a b"
    assert describe(FormatError("is bad", path="x", offset=3)) == "x, at byte 3: is bad"
    assert describe(SampleError("not an image")) == "not an image"


def test_which_errors_end_the_run_and_which_may_pass() -> None:
    assert is_fatal(OSError(errno.ENOSPC, "")) and is_fatal(OSError(errno.EROFS, ""))
    assert not is_fatal(OSError(errno.EIO, "")) and not is_fatal(ValueError())
    assert may_pass(ConnectionError()) and not may_pass(UnitFailed("x"))


def asked_counts(num_units: int, seconds: float) -> list[int]:
    """Answer every question in full, and return what was asked for."""
    units = Nothing(num_units=num_units).units()
    counts: list[int] = []

    def answer(message: dict[str, Any]) -> None:
        assert message["kind"] == "ask"
        counts.append(message["count"])
        for _ in range(message["count"]):
            unit = next(units, None)
            received.put({"unit": unit_to_plain(unit)} if unit else {"end": True})

    received = ReceivedUnits(answer)
    for _ in received:
        time.sleep(seconds)
    return counts


def test_quick_units_come_several_at_a_time() -> None:
    counts = asked_counts(500, 0.0)
    assert counts[0] == 1 and max(counts) == MAX_ASKED


def test_slow_units_come_one_by_one() -> None:
    assert set(asked_counts(5, 3 * QUICK_S)) == {1}


def test_nothing_is_asked_for_while_units_wait() -> None:
    asked: list[dict[str, Any]] = []
    received = ReceivedUnits(asked.append)
    units = list(Nothing(num_units=3).units())
    for unit in units:
        received.put({"unit": unit_to_plain(unit)})
    received.put({"end": True})
    assert list(received) == units and asked == []


def item(number: int, num_bytes: int = 0) -> Finished:
    unit = Unit(name=str(number), input={})
    return Finished(unit, Draft(Path()), Tally(), "", num_bytes, 0.0, 0.0)


def numbers(groups: Sequence[Sequence[Finished]]) -> list[int]:
    return [int(finished.unit.name) for group in groups for finished in group]


def test_all_are_committed_in_order_and_in_groups() -> None:
    groups: list[Sequence[Finished]] = []
    first_began, go_on = threading.Event(), threading.Event()

    def commit(group: Sequence[Finished]) -> None:
        groups.append(group)
        first_began.set()
        go_on.wait(30)

    with Committer(commit) as committer:
        committer.add(item(0))
        first_began.wait(30)
        for number in range(1, 30):
            committer.add(item(number))
        go_on.set()
    assert numbers(groups) == list(range(30))
    assert [len(group) for group in groups] == [1, 29]


def test_a_slow_disk_holds_up_the_work() -> None:
    go_on = threading.Event()
    num_added = 0

    with Committer(lambda group: go_on.wait(30) and None) as committer:

        def add_many() -> None:
            nonlocal num_added
            for number in range(3 * MAX_WAITING):
                committer.add(item(number))
                num_added += 1

        thread = threading.Thread(target=add_many)
        thread.start()
        thread.join(0.3)
        assert num_added <= MAX_WAITING
        go_on.set()
        thread.join()
        assert num_added == 3 * MAX_WAITING


def test_large_units_do_not_wait_for_others() -> None:
    groups: list[Sequence[Finished]] = []
    with Committer(groups.append) as committer:
        for number in range(3):
            committer.add(item(number, MAX_WAITING_BYTES + 1))
            assert numbers(groups) == list(range(number + 1))


def test_a_bug_in_the_commit_comes_out() -> None:
    def commit(group: Sequence[Finished]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Committer(commit) as committer:
        committer.add(item(0))
    with pytest.raises(ZeroDivisionError), Committer(commit) as committer:
        for number in range(10 * MAX_WAITING):
            committer.add(item(number))


def test_what_is_finished_is_committed_although_the_work_is_interrupted(tmp_path: Path) -> None:
    groups: list[Sequence[Finished]] = []
    with pytest.raises(KeyboardInterrupt), Committer(groups.append) as committer:
        for number in range(5):
            committer.add(item(number))
        raise KeyboardInterrupt
    assert numbers(groups) == list(range(5))


def test_folders_are_empty_and_not_shared(tmp_path: Path) -> None:
    folders = DraftFolders(tmp_path)
    first, second = folders.take(), folders.take()
    assert first != second and list(first.iterdir()) == list(second.iterdir()) == []


def test_an_empty_folder_is_used_again(tmp_path: Path) -> None:
    folders = DraftFolders(tmp_path)
    first = folders.take()
    folders.give_back(first)
    assert folders.take() == first


def test_what_was_left_in_a_folder_is_not_handed_on(tmp_path: Path) -> None:
    folders = DraftFolders(tmp_path)
    first = folders.take()
    (first / "folder").mkdir()
    (first / "folder" / "left").touch()
    folders.give_back(first)
    assert list(folders.take().iterdir()) == [] and not (first / "folder").exists()


def test_a_folder_that_is_gone_is_not_handed_out(tmp_path: Path) -> None:
    folders = DraftFolders(tmp_path)
    first = folders.take()
    first.rmdir()
    folders.give_back(first)
    assert folders.take().is_dir()
