"""Working off units: the one loop in which every engine ends, and the worker process around it.

`work_job` pulls units, works each in a private draft, and hands what is finished to the committer,
which takes checksums and puts files in place while the next unit is being worked. Whatever a stage
raises stops its unit, never the run; except a full disk, which would stop every other unit as well.

`python -m shardmill.running.worker FD NOTE` is a worker process of the local engine. Standard input
carries lines from the driver, the descriptor FD carries lines back, all JSON (NOTE is for `note`):

    in    {"job": {...}, "path": [...]} first, {"unit": {...}}, {"end": true}, {"quit": true}
    out   {"kind": "ask", "count": n} for the next units, events, {"kind": "broken", "message": ...}

Whatever the stage prints goes to the log file that the driver opened as standard output and error.
The end of standard input without {"end"} means that the driver is gone: the worker exits at once.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from shardmill.errors import FormatError, ShardmillError, StoreError, without_addresses
from shardmill.machine import note, write_notes
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.manifest import stage_digest
from shardmill.model.stage import Draft, Stage, Tally, Unit, Work, unit_from_plain
from shardmill.running.engine import Job, add_to_path, keep_failure
from shardmill.running.events import Event, OnEvent, event_to_plain, is_fatal
from shardmill.shards.commit import Sealed, checksum_read, commit, seal
from shardmill.shards.ledger import Ledger, earlier_files, view_point
from shardmill.storage.path import Home, is_remote
from shardmill.storage.text import dump_line, parse_json

# What waits for its commit is lost when the process is killed, so not much may wait.
MAX_WAITING = 64
MAX_WAITING_BYTES = 1 << 30
# Units that take less than this are asked for several at a time.
QUICK_S = 0.005
MAX_ASKED = 16
# When a unit that takes long is first told of, and at the latest again.
FIRST_WATCH_S, LONGEST_WATCH_S = 2.0, 30.0
EXIT_ORPHANED = 3
QUIT_GRACE_S = 5  # less than the pool waits before it kills
CHUNK_BYTES = 1 << 16


def work_job(job: Job, stage: Stage, units: Iterable[Unit], on_event: OnEvent) -> None:
    """Work every unit that `units` gives, one after the other, and commit what is finished.

    Returns after the last commit. `on_event` is called from this thread and from the committer's.
    """
    ledger = job.ledger
    if is_remote(str(ledger.out_dir)):
        ledger.make_drafts()  # this may be another machine than the driver's
    watch, home = Watch(on_event), ledger.home
    loop = _Loop(
        job,
        stage,
        stage_digest(stage),
        ledger,
        home,
        DraftFolders(ledger.draft_dir),
        ledger.read_inputs() or {},
        on_event,
        watch,
    )
    # The committer ends first: finished units are safe before the stage closes, which may fail.
    with stage.open() as work, watch, Committer(loop.commit_group) as committer:
        for unit in units:
            on_event(Event(kind="start", unit=unit.name, pid=os.getpid()))
            finished = loop.try_unit(work, unit)
            if finished is not None:
                committer.add(finished)


@dataclass(frozen=True, slots=True)
class Finished:
    """A unit whose work is over and whose counts balance; its files lie in its draft.

    It took `seconds`, of which the process computed for `cpu_seconds`; `read` is the checksum of
    the raw files that it was made from.
    """

    unit: Unit
    draft: Draft
    tally: Tally
    read: str
    num_bytes: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class _Loop:
    """What stays the same from unit to unit."""

    job: Job
    stage: Stage
    stage_digest: str
    ledger: Ledger
    home: Home
    folders: DraftFolders
    inputs: Mapping[str, Any]
    on_event: OnEvent
    watch: Watch

    def try_unit(self, work: Work, unit: Unit) -> Finished | None:
        """Return the finished unit, or report its failure and return None."""
        note("")
        began, began_cpu = time.monotonic(), time.process_time()
        for attempt in range(self.job.retries + 1):
            try:
                draft, tally, read = self._work(work, unit)
                with os.scandir(draft.dir) as files:
                    num_bytes = sum(file.stat().st_size for file in files)
            except Exception as error:
                if attempt == self.job.retries or not may_pass(error):
                    self._report_failure(unit.name, error)
                    break
            else:
                took, computed = time.monotonic() - began, time.process_time() - began_cpu
                return Finished(unit, draft, tally, read, num_bytes, took, computed)
        return None

    def _work(self, work: Work, unit: Unit) -> tuple[Draft, Tally, str]:
        draft, tally = Draft(self.folders.take(), shared_dir=self.ledger.out_dir), Tally()
        draft.earlier = earlier_files(self.ledger, unit, self.stage_digest)
        with ExitStack() as cleanup:
            cleanup.callback(self.folders.give_back, draft.dir)
            self._check_listed(unit)
            read = checksum_read(self.stage, unit)
            with self.watch.over(unit, tally):
                work(unit, draft, tally)
            self._check_listed(unit)
            # Counts that do not balance fail the unit while its files are still only a draft.
            tally.check(draft, max_skip_rate=self.job.max_skip_rate)
            cleanup.pop_all()
        seen = Home(view_point(to_plain(self.stage), unit)).seen if tally.rejects else str
        tally.rejects = [replace(reject, detail=seen(reject.detail)) for reject in tally.rejects]
        return draft, tally, read

    def _check_listed(self, unit: Unit) -> None:
        """Raise `FormatError` unless raw files have the size and time that they were listed with.

        Rows that have a checksum, and objects of a store, are checked by who reads them.
        """
        for place in unit.places if "xxh3" not in unit.input else ():
            stamp = None if is_remote(place) else self.inputs.get(self.home.relative(place))
            info = None if stamp is None else Path(place).stat()
            if info is not None and stamp != [info.st_size, info.st_mtime_ns]:
                raise FormatError("was changed after it was listed", path=place)

    def commit_group(self, group: Sequence[Finished]) -> None:
        """Commit finished units and report each as done or failed.

        A unit is reported only when its receipt lasts: whoever hears of it may rely on it.
        """
        sealed: list[tuple[Finished, Sealed]] = []
        try:
            for finished in group:
                unit, draft, tally = finished.unit, finished.draft, finished.tally
                digest, read = self.stage_digest, finished.read
                try:
                    sealed.append((finished, seal(self.ledger, unit, digest, draft, tally, read)))
                except (ShardmillError, OSError) as error:
                    self._report_failure(unit.name, error)
            self._commit(sealed)
        finally:
            for finished in group:
                self.folders.give_back(finished.draft.dir)

    def _commit(self, group: Sequence[tuple[Finished, Sealed]]) -> None:
        try:
            commit(self.ledger, [sealed for _, sealed in group], self.stage_digest)
        except OSError as error:
            for finished, _ in group:
                self._report_failure(finished.unit.name, error)
            return
        for finished, sealed in group:
            self.on_event(
                Event(
                    kind="done",
                    unit=sealed.receipt.unit,
                    pid=os.getpid(),
                    seconds=round(finished.seconds, 6),
                    cpu_seconds=round(finished.cpu_seconds, 6),
                    num_in=sealed.receipt.num_in,
                    num_kept=sealed.receipt.num_kept,
                    num_bytes=sealed.receipt.num_bytes,
                )
            )

    def _report_failure(self, unit_name: str, error: Exception) -> None:
        message = describe(error)
        keep_failure(self.ledger, unit_name, message, "".join(traceback.format_exception(error)))
        pid, fatal = os.getpid(), is_fatal(error)
        self.on_event(Event(kind="failed", unit=unit_name, pid=pid, message=message, fatal=fatal))


class Watch:
    """A thread that tells how far the unit at work is, if it takes long: seldom, then less often.

    It reads the counts of the tally, which the work counts up anyway.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._over: tuple[Unit, Tally] | None = None
        self._due_s, self._pause_s = 0.0, FIRST_WATCH_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def over(self, unit: Unit, tally: Tally) -> Iterator[None]:
        """Watch a unit while the block works it."""
        self._pause_s = FIRST_WATCH_S
        self._due_s = time.monotonic() + self._pause_s
        self._over = unit, tally
        try:
            yield
        finally:
            self._over = None

    def look(self, now_s: float) -> None:
        """Tell how far the unit is, if that is due."""
        watched = self._over
        if watched is None or now_s < self._due_s:
            return
        unit, tally = watched
        self._pause_s = min(2 * self._pause_s, LONGEST_WATCH_S)
        self._due_s = now_s + self._pause_s
        self._on_event(
            Event(
                kind="working",
                unit=unit.name,
                pid=os.getpid(),
                num_in=max(tally.num_in, tally.num_begun),
                num_samples=unit.num_samples or 0,
            )
        )

    def _run(self) -> None:
        while not self._ended.wait(FIRST_WATCH_S / 2):
            self.look(time.monotonic())


class Committer:
    """A thread that commits finished units beside the work, in groups that form by themselves.

    While one group is being committed, the units that finish meanwhile wait and become the next
    group: a slow disk gives larger groups and fewer fsyncs a unit, and no finished unit waits for a
    timer. Leaving the block waits for the last commit.
    """

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
        # Before the call is submitted: one that runs already takes this unit along.
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


class DraftFolders:
    """Empty folders below `root`, used again and again; safe to use from two threads.

    A file system spreads new folders over the disk, so that a file in a new folder costs ten times
    as much as one in a folder that exists: most of what a run with thousands of small units spends.
    """

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


def may_pass(error: Exception) -> bool:
    """Say whether trying again can help; what shardmill raises is about the input and stays."""
    if isinstance(error, StoreError):
        return error.passing
    return not isinstance(error, ShardmillError) and not is_fatal(error)


def describe(error: BaseException) -> str:
    """Return one line: the message of our own errors, type and message of all others."""
    text = str(error) if isinstance(error, ShardmillError) else f"{type(error).__name__}: {error}"
    return without_addresses(" ".join(text.split()))


class ReceivedUnits:
    """Units that arrive in one thread and are worked in another; `send` reaches the driver."""

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self._send = send
        self._units: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()

    def put(self, message: dict[str, Any]) -> None:
        """Take a message of the driver: {"unit": ...}, or anything else for the end of them."""
        self._units.put(unit_from_plain(message["unit"]) if "unit" in message else None)

    def __iter__(self) -> Iterator[Unit]:
        """Ask for units and yield them until the driver has no more.

        Quick units are asked for several at a time, or the asking would take longer than the work.
        """
        count = 1
        while True:
            if self._units.empty():
                self._send({"kind": "ask", "count": count})
            unit = self._units.get()
            if unit is None:
                return
            began_s = time.monotonic()
            yield unit
            quick = time.monotonic() - began_s < QUICK_S
            count = min(2 * count, MAX_ASKED) if quick else 1


class Channel:
    """The two pipes to the driver."""

    def __init__(self, commands_fd: int, events_fd: int) -> None:
        self._lines = read_lines(commands_fd)
        self._events_fd = events_fd
        self._sending = threading.Lock()
        self.units = ReceivedUnits(self.send)

    def receive_job(self) -> Job:
        """Return the job; from then on a thread listens for units, and for the driver's end."""
        line = next(self._lines, b"")
        if not line:  # the driver died before it could say what to do
            os._exit(EXIT_ORPHANED)
        message = parse_json(line)
        add_to_path(message["path"])
        job: Job = from_plain(message["job"], Job, where="job", trusted=True)
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        return job

    def send(self, message: dict[str, Any]) -> None:
        """Send one line; called from the work's thread and from the committer's."""
        content = memoryview(dump_line(message))
        with self._sending:
            while content:
                content = content[os.write(self._events_fd, content) :]

    def _listen(self) -> None:
        for line in self._lines:
            message = parse_json(line)
            if "quit" in message:
                _interrupt_work()
            else:
                self.units.put(message)
        # Without its driver nobody holds the lock, and another run may be at these units soon.
        os._exit(EXIT_ORPHANED)


def main() -> None:
    """Work off what the driver sends."""
    faulthandler.enable()
    # Ctrl-C and a scheduler's SIGTERM reach every process of the group; the driver decides.
    # A handler that does nothing, unlike SIG_IGN, is not inherited by programs that a stage starts.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    os.set_inheritable(int(sys.argv[1]), False)
    write_notes(int(sys.argv[2]))
    channel = Channel(_take_stdin(), int(sys.argv[1]))
    # The stage is imported only now, on the path that the driver sent: a worker starts light.
    job = channel.receive_job()
    try:
        stage = job.load_stage()
        work_job(job, stage, channel.units, lambda event: channel.send(event_to_plain(event)))
    except KeyboardInterrupt:
        pass
    except ShardmillError as error:
        channel.send({"kind": "broken", "message": str(error)})


def read_lines(descriptor: int) -> Iterator[bytes]:
    """Yield whole lines until the other end closes.

    A buffered file would hold a lock while it waits, on which the interpreter's exit can hang.
    """
    rest = b""
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _take_stdin() -> int:
    """Keep standard input for the driver's lines, and give the stage an empty one."""
    commands_fd = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return commands_fd


def _interrupt_work() -> None:
    """End the unit at work with `KeyboardInterrupt`, let finished units be committed, and exit."""
    # More than once, because an exception that is raised inside of a finalizer gets lost.
    for _ in range(QUIT_GRACE_S):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        time.sleep(1)
    os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    main()
