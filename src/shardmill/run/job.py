"""A job, and working it off: the one loop in which every executor ends.

A job is all that a process needs besides its units, as JSON. `work_off` pulls units, works each in
a private draft, and hands what is finished to the committer, which takes checksums and puts files
in place while the next unit is being worked. Whatever a stage raises stops its unit, never the run;
except a full disk, which would stop every other unit as well.

Commits finished units beside the work, in groups that form by themselves.

While one group is being committed, the units that finish meanwhile wait and become the next group:
a slow disk gives larger groups and fewer fsyncs a unit, and no finished unit waits for a timer. Few
wait: what waits is lost when the process is killed.

Private folders for units at work, used again once they are empty.

A file system spreads new folders over the disk, so that a file in a new folder costs ten times as
much as one in a folder that exists. With thousands of small units that is what a run spends.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from shardmill.errors import ShardmillError, StoreError
from shardmill.model.codec import Plain, from_plain
from shardmill.model.manifest import Receipt, stage_digest
from shardmill.model.stage import Draft, Stage, Tally, Unit, Work
from shardmill.run.events import Event, OnEvent
from shardmill.shards.commit import Sealed, commit, seal
from shardmill.shards.ledger import Ledger, earlier_files
from shardmill.storage.path import as_path
from shardmill.storage.url import is_remote

MAX_WAITING = 64
MAX_WAITING_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finished:
    """A unit whose work is over and whose books balance; its files lie in its draft.

    It took `seconds`, of which the process computed for `cpu_seconds`.
    """

    unit: Unit
    draft: Draft
    tally: Tally
    num_bytes: int
    seconds: float
    cpu_seconds: float


class Committer:
    """A thread that calls `commit_group` with what `add` was given; leaving waits for the last."""

    def __init__(self, commit_group: Callable[[Sequence[Finished]], None]) -> None:
        self._commit_group = commit_group
        self._waiting: deque[Finished] = deque()
        self._futures: deque[tuple[Future[None], int]] = deque()
        self._num_bytes = 0
        self._pool = ThreadPoolExecutor(1, "commit")

    def __enter__(self) -> Committer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if error is None:
            for future, _num_bytes in self._futures:
                future.result()

    def add(self, finished: Finished) -> None:
        """Queue a finished unit; waits while too many wait already."""
        self._waiting.append(finished)
        self._futures.append((self._pool.submit(self._commit_waiting), finished.num_bytes))
        self._num_bytes += finished.num_bytes
        while self._futures and (self._is_full() or self._futures[0][0].done()):
            future, num_bytes = self._futures.popleft()
            future.result()
            self._num_bytes -= num_bytes

    def _is_full(self) -> bool:
        return len(self._futures) > MAX_WAITING or self._num_bytes > MAX_WAITING_BYTES

    def _commit_waiting(self) -> None:
        # One call takes all that wait; the calls submitted for the others then find nothing.
        group = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if group:
            self._commit_group(group)


class DraftRoom:
    """Hands out empty folders below `root`; safe to use from two threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._empty: deque[Path] = deque()

    def take(self) -> Path:
        """Return an empty folder that nobody else uses."""
        try:
            return self._empty.pop()
        except IndexError:
            return Path(tempfile.mkdtemp(prefix="unit-", dir=self._root))

    def give_back(self, path: Path) -> None:
        """Take back a folder; whatever was left in it is removed."""
        # Somebody who took this run for dead may have removed the folder.
        with suppress(FileNotFoundError):
            if next(path.iterdir(), None) is None:
                self._empty.append(path)
                return
        shutil.rmtree(path, ignore_errors=True)


FATAL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a process must know to work off units; travels as JSON."""

    stage: Plain
    out_dir: str
    token: str
    retries: int
    max_skip_rate: float

    def for_run(self, token: str) -> Job:
        """Return the same job for another run."""
        return replace(self, token=token)

    def load_stage(self) -> Stage:
        """Return the stage; its class must be importable here."""
        stage: Stage = from_plain(self.stage, where="stage")
        return stage

    @property
    def ledger(self) -> Ledger:
        """The ledger of the output folder, for the run of this job."""
        return Ledger(as_path(self.out_dir), self.token)


def work_job(job: Job, stage: Stage, units: Iterable[Unit], on_event: OnEvent) -> None:
    """Work off units of a job in this process, wherever it was started for that."""
    work_off(
        stage,
        units,
        job.ledger,
        retries=job.retries,
        max_skip_rate=job.max_skip_rate,
        on_event=on_event,
    )


def work_off(
    stage: Stage,
    units: Iterable[Unit],
    ledger: Ledger,
    *,
    retries: int,
    max_skip_rate: float,
    on_event: OnEvent,
) -> None:
    """Work every unit that `units` gives, one after the other, and commit what is finished.

    Returns after the last commit. `on_event` is called from this thread and from the committer's.
    """
    if is_remote(str(ledger.out_dir)):
        ledger.make_drafts()  # this may be another machine than the driver's
    room = DraftRoom(ledger.draft_dir)
    bench = _Bench(stage_digest(stage), ledger, room, retries, max_skip_rate, on_event)
    with stage.open() as work, Committer(bench.commit_group) as committer:
        for unit in units:
            on_event(Event(kind="start", unit=unit.name, pid=os.getpid()))
            finished = bench.try_unit(work, unit)
            if finished is not None:
                committer.add(finished)


@dataclass(frozen=True, slots=True)
class _Bench:
    """What stays the same from unit to unit."""

    stage_digest: str
    ledger: Ledger
    room: DraftRoom
    retries: int
    max_skip_rate: float
    on_event: OnEvent

    def try_unit(self, work: Work, unit: Unit) -> Finished | None:
        """Return the finished unit, or report its failure and return None."""
        began, began_cpu = time.monotonic(), time.process_time()
        for attempt in range(self.retries + 1):
            try:
                draft, tally = self._work(work, unit)
                num_bytes = _num_bytes(draft)
            except Exception as error:
                if attempt == self.retries or not may_pass(error):
                    self.report_failure(unit.name, error)
                    break
            else:
                took, computed = time.monotonic() - began, time.process_time() - began_cpu
                return Finished(unit, draft, tally, num_bytes, took, computed)
        return None

    def _work(self, work: Work, unit: Unit) -> tuple[Draft, Tally]:
        draft, tally = Draft(self.room.take(), shared_dir=self.ledger.out_dir), Tally()
        draft.earlier = earlier_files(self.ledger, unit, self.stage_digest)
        with ExitStack() as cleanup:
            cleanup.callback(self.room.give_back, draft.dir)
            work(unit, draft, tally)
            tally.check(draft, max_skip_rate=self.max_skip_rate)
            cleanup.pop_all()
        return draft, tally

    def commit_group(self, group: Sequence[Finished]) -> None:
        """Commit finished units and report each as done or failed."""
        try:
            sealed = [(finished, self._seal(finished)) for finished in group]
            self._commit([(finished, found) for finished, found in sealed if found is not None])
        finally:
            for finished in group:
                self.room.give_back(finished.draft.dir)

    def _commit(self, group: Sequence[tuple[Finished, Sealed]]) -> None:
        try:
            commit(self.ledger, [sealed for _, sealed in group], self.stage_digest)
        except OSError as error:
            for finished, _ in group:
                self.report_failure(finished.unit.name, error)
        else:
            for finished, sealed in group:
                self.on_event(_done(finished, sealed.receipt))

    def _seal(self, finished: Finished) -> Sealed | None:
        """Return the receipt and its files, or report the failure of this one unit."""
        unit, draft, tally = finished.unit, finished.draft, finished.tally
        try:
            return seal(self.ledger, unit, self.stage_digest, draft, tally)
        except (ShardmillError, OSError) as error:
            self.report_failure(unit.name, error)
            return None

    def report_failure(self, unit_name: str, error: Exception) -> None:
        """Keep the failure in the folder, as far as the disk allows, and tell the run."""
        message = describe(error)
        trace = "".join(traceback.format_exception(error))
        with suppress(OSError):
            self.ledger.write_failure(unit_name, failure_record(unit_name, message, trace))
        self.on_event(
            Event(
                kind="failed",
                unit=unit_name,
                pid=os.getpid(),
                message=message,
                fatal=is_fatal(error),
            )
        )


def failure_record(unit_name: str, message: str, trace: str) -> dict[str, Plain]:
    """Return the content of failures/NAME.json."""
    return {
        "unit": unit_name,
        "message": message,
        "traceback": trace,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": round(time.time(), 3),
    }


def is_fatal(error: BaseException) -> bool:
    """Say whether an error would meet every other unit too: a full disk, a store that refuses."""
    if isinstance(error, StoreError):
        return not error.passing
    return isinstance(error, OSError) and error.errno in FATAL_ERRNOS


def may_pass(error: Exception) -> bool:
    """Say whether trying again can help; what shardmill raises is about the input and stays."""
    if isinstance(error, StoreError):
        return error.passing
    return not isinstance(error, ShardmillError) and not is_fatal(error)


def describe(error: BaseException) -> str:
    """Return one line: the message of our own errors, type and message of all others."""
    text = str(error) if isinstance(error, ShardmillError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())


def _done(finished: Finished, receipt: Receipt) -> Event:
    return Event(
        kind="done",
        unit=receipt.unit,
        pid=os.getpid(),
        seconds=round(finished.seconds, 6),
        cpu_seconds=round(finished.cpu_seconds, 6),
        num_in=receipt.num_in,
        num_kept=receipt.num_kept,
        num_bytes=receipt.num_bytes,
    )


def _num_bytes(draft: Draft) -> int:
    with os.scandir(draft.dir) as files:
        return sum(file.stat().st_size for file in files)
