"""Running a stage into a folder: plan, skip what is done, work off the rest, collect.

Running again goes on where it stopped, because done means: has a receipt. A finished folder is
recognised by its manifest alone. A folder that another spec made is refused, and so is a finished
one that other inputs made; in an unfinished one, what did not change with the inputs stays.

`retry_rejects` makes units of a finished folder pending again, because downloads that failed then
may succeed now. `try_units` runs a few units, to know beforehand what all of them will take.

Below these is what a run and a task (see `task`) both need: drafts and log, stop signals, and
removing what the dead left. A run that is killed leaves drafts, a lock and claims behind. The next
run removes drafts that have no lock; whoever completes a folder, and every run that finds it
complete, removes all that does not belong into one (`tidy`).
"""

from __future__ import annotations

import errno
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from shardmill.errors import (
    ConfigError,
    FormatError,
    LockedError,
    NothingKept,
    ShardmillError,
    StoreError,
    UnitFailed,
    check_packages,
)
from shardmill.machine import count_cpus
from shardmill.model.codec import build, change_places, from_plain, texts_of, to_plain
from shardmill.model.manifest import Manifest, Receipt, stage_digest
from shardmill.model.stage import Stage, Unit, packages_of
from shardmill.plugins import ENGINES
from shardmill.running.engine import Assignment, Engine, Job
from shardmill.running.events import Event, EventHub, EventLog, OnEvent, is_fatal
from shardmill.running.lock import (
    FolderLock,
    LockTiming,
    may_live,
    new_token,
    part_lock_name,
    read_locks,
    remove_dead_locks,
    task_lock_name,
)
from shardmill.running.plan import (
    FolderPlan,
    check_fresh,
    check_place,
    check_spec,
    collect,
    part_of,
    plan_units,
    store_plan,
)
from shardmill.running.progress import Progress, RunReport
from shardmill.shards.ledger import FOLDERS, Ledger, set_aside
from shardmill.storage.files import is_file_draft, list_names
from shardmill.storage.path import UrlPath, absolute, as_path, refuse_secret


def run_stage(
    stage: Stage,
    out: Path | str,
    *,
    on: Engine | None = None,
    workers: int | None = None,
    retries: int = 1,
    max_skip_rate: float = 0.0,
    allow_empty: bool = True,
    part: tuple[int, int] = (1, 1),
    on_event: OnEvent | None = None,
    timing: LockTiming | None = None,
) -> RunReport:
    """Do what is not done yet of a stage in the folder `out`, and complete it if that was all.

    `on` is the engine, by default this machine. `workers` is the number of processes, by default
    one for each usable processor; 0 works in this process. `part` is (i, n): only the i-th of n
    parts, so that n machines share the units. A unit that fails is in the report, and does not
    stop the others.

    Raises `StaleError` if the folder was begun with another spec or input, `LockedError` if
    another run works on it, `TooManySkips` if all units together skip more than the rate allows,
    `NothingKept` if nothing came of them and `allow_empty` is false, `Interrupted` after a stop
    signal. What is done stays done in every case.
    """
    engine: Engine = on or build(ENGINES, {"kind": "local"})
    progress = Progress()
    stage = as_workers_load(stage)
    for text in texts_of(to_plain(stage)):
        refuse_secret(text)
    ledger = Ledger(as_path(out).absolute())
    if isinstance(ledger.out_dir, UrlPath) and ledger.out_dir.is_web:
        raise ConfigError(
            f"{ledger.out_dir}: a web server cannot be written to: name a folder, or a url of an "
            "object store"
        )
    with explain_refusals(ledger):
        manifest = _finished(ledger, stage)
        if manifest is not None:
            return progress.report(ledger.out_dir, manifest)
        _check_options(workers, retries, max_skip_rate, part)
        check_place(ledger)
        lock_name = _lock_name(engine, part)
        ledger = replace(ledger, token=new_token(lock_name))
        engine.check()
        if engine.is_local:  # elsewhere other packages may be installed than here
            check_packages(packages_of(stage))
        job = Job(
            stage=to_plain(stage),
            out_dir=str(ledger.out_dir),
            token=ledger.token,
            retries=retries,
            max_skip_rate=max_skip_rate,
            allow_empty=allow_empty,
        )
        listeners: list[OnEvent] = [progress, on_event] if on_event else [progress]
        ledger.make_folders()
        lock = FolderLock(
            ledger.out_dir / "locks",
            lock_name,
            ledger.token,
            timing=timing,
            on_wait=lambda message: (
                on_event(Event(kind="wait", message=message)) if on_event else None
            ),
        )
        # The lock comes before the drafts: drafts without a lock are taken for those of the dead.
        with lock, open_session(ledger, listeners) as hub:
            plan = _plan(ledger, stage, timing)
            if plan.num_kept is not None:
                kept = f"{plan.num_kept} of {len(plan.units)} units are done and stay"
                hub(Event(kind="wait", message=f"inputs changed: {kept}"))
            _work(engine, stage, job, part_of(plan.units, part), workers, lock, hub)
            try:
                manifest = collect(ledger, stage, plan.units, job.accepts)
            except NothingKept as error:
                error.report = progress.report(ledger.out_dir, None)
                raise
            # Claims go after the manifest is there: until then they keep tasks from double work.
            if manifest is not None:
                tidy(ledger)
            return progress.report(ledger.out_dir, manifest)


def as_workers_load(stage: Stage) -> Stage:
    """Return a stage as every worker has it, wherever it runs.

    A float that was given as an int would have another digest there, and a path that was typed in
    this folder would lead elsewhere.
    """
    plain = change_places(to_plain(stage), absolute)
    loaded: Stage = from_plain(plain, where="stage", trusted=True)
    return loaded


def preview_stage(
    stage: Stage,
    out: Path | str,
    *,
    on: Engine,
    workers: int | None = None,
    retries: int = 1,
    max_skip_rate: float = 0.0,
    allow_empty: bool = True,
) -> str:
    """Return what the engine would submit to run the stage; nothing is written.

    Raises `ConfigError` if the engine submits nothing.
    """
    job = Job(
        stage=to_plain(as_workers_load(stage)),
        out_dir=str(as_path(out).absolute()),
        token="",
        retries=retries,
        max_skip_rate=max_skip_rate,
        allow_empty=allow_empty,
    )
    return on.preview(job, num_workers=workers)


def _finished(ledger: Ledger, stage: Stage) -> Manifest | None:
    if not ledger.manifest_path.exists() or not check_fresh(ledger, stage):
        return None
    # A manifest that cannot be read is made again from the receipts.
    with suppress(FormatError):
        manifest = ledger.read_manifest()
        tidy(ledger)  # whoever wrote the manifest may have been killed before this
        return manifest
    return None


def _check_options(
    workers: int | None, retries: int, max_skip_rate: float, part: tuple[int, int]
) -> None:
    """Raise `ConfigError` for whatever a caller may have mistyped."""
    if (workers is not None and workers < 0) or retries < 0:
        raise ConfigError(f"workers and retries cannot be negative: {workers}, {retries}")
    if not 0 <= max_skip_rate <= 1:
        raise ConfigError(f"max_skip_rate is a share from 0 to 1, got {max_skip_rate}")
    part_of([], part)


def _lock_name(engine: Engine, part: tuple[int, int]) -> str:
    if not engine.has_tasks:
        return part_lock_name(part)
    if part != (1, 1):
        name = type(engine).__name__
        raise ConfigError(f"--part is for machines without a scheduler: leave it out with {name}")
    return task_lock_name("driver")


def _plan(ledger: Ledger, stage: Stage, timing: LockTiming | None) -> FolderPlan:
    """Return the units of the folder; of parts that start together one lists, the others wait."""
    locks_dir = ledger.out_dir / "locks"
    with FolderLock(locks_dir, "plan", ledger.token, wait=True, timing=timing):
        remove_dead_drafts(ledger)
        return plan_units(ledger, stage, lambda: remove_dead_drafts(ledger))


def _work(
    engine: Engine,
    stage: Stage,
    job: Job,
    units: Sequence[Unit],
    num_workers: int | None,
    lock: FolderLock,
    hub: EventHub,
) -> None:
    pending = job.ledger.pending(units, stage_digest(stage))
    hub(Event(kind="plan", num_units=len(units), num_done=len(units) - len(pending)))
    with StopSignals(raising=num_workers == 0) as signals:
        assignment = Assignment(
            job=job,
            stage=stage,
            units=pending,
            num_workers=num_workers,
            on_event=hub,
            relay=hub.relay,
            should_stop=lambda: lock.lost or hub.saw_fatal or signals.number != 0,
        )
        try:
            engine.work(assignment)
        finally:
            # Whatever the engine raised while it was being stopped, the cause is what is told.
            if signals.number:
                raise_interrupted(signals.number, job.ledger.out_dir)
            if lock.lost:
                raise LockedError(
                    f"another run took over {job.ledger.out_dir}, because this one gave no sign of "
                    "life for a while; this one stops here"
                )


def retry_rejects(
    out: Path | str, stage: Stage, reasons: Sequence[str], *, timing: LockTiming | None = None
) -> int:
    """Make units pending that have rejects whose reason begins with one of these; return how many.

    Running the stage does them. Their receipts are set aside, not thrown away: the samples that
    such a unit has already are taken from its own shards, and only the others are fetched. The
    result is that of a run in which they had never failed. A folder that was not begun, or made
    otherwise, is left to that run.
    """
    lock_name, stage = part_lock_name((1, 1)), as_workers_load(stage)
    ledger = Ledger(as_path(out).absolute(), new_token(lock_name))
    # The run that follows plans an unfinished folder anew if its inputs changed.
    check = check_fresh if ledger.manifest_path.exists() else check_spec
    if not check(ledger, stage):
        return 0
    ledger.make_folders()
    with FolderLock(ledger.out_dir / "locks", lock_name, ledger.token, timing=timing):
        ledger.make_drafts()  # receipts are set aside by way of them
        found = ledger.read_receipts(ledger.read_units(), stage_digest(stage))
        chosen = [receipt for receipt in found if receipt and _has(receipt, tuple(reasons))]
        if chosen:
            set_aside(ledger, chosen)
        ledger.draft_dir.rmdir()
    return len(chosen)


def _has(receipt: Receipt, reasons: tuple[str, ...]) -> bool:
    return any(reason.startswith(reasons) for reason in receipt.skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a few units of a stage took; `seconds` and `cpu_seconds` are those of one unit."""

    num_units: int
    num_tried: int
    num_workers: int
    seconds: float
    cpu_seconds: float
    manifest: Manifest

    @property
    def share(self) -> float:
        """The share of all units that was tried."""
        return self.num_tried / max(1, self.num_units)


def try_units(
    stage: Stage, out: Path, *, num_units: int, workers: int | None, max_skip_rate: float
) -> Tried:
    """Run `num_units` units of a stage, spread over all of them, into a folder of their own.

    The folder is complete, so that the next stage can be tried on it; it must not be kept.
    """
    stage = as_workers_load(stage)
    inputs, units = stage.inputs(), list(stage.units())
    chosen = spread(units, num_units)
    ledger = Ledger(out.absolute(), secrets.token_hex(8))
    ledger.make_folders()
    ledger.make_drafts()
    store_plan(ledger, stage, ledger.stored_inputs(inputs), chosen)
    times = UnitTimes()
    report = run_stage(stage, out, workers=workers, max_skip_rate=max_skip_rate, on_event=times)
    if report.manifest is None:
        raise UnitFailed("; ".join(f"unit {name}: {message}" for name, message in report.failures))
    seconds, cpu_seconds = times.mean()
    return Tried(
        num_units=len(units),
        num_tried=len(chosen),
        num_workers=max(1, count_cpus() if workers is None else workers),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        manifest=report.manifest,
    )


def spread(units: Sequence[Unit], count: int) -> list[Unit]:
    """Return `count` units at even distances, or all if there are no more.

    Of 10 units 3 are 1, 5 and 8: the middles of three equal parts.
    """
    count = min(count, len(units))
    return [units[(2 * n + 1) * len(units) // (2 * count)] for n in range(count)]


@dataclass(slots=True)
class UnitTimes:
    """Notes what the units of each process took; usable as `on_event`."""

    times: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        if event.kind == "done":
            self.times.setdefault(event.pid, []).append((event.seconds, event.cpu_seconds))

    def mean(self) -> tuple[float, float]:
        """Return the mean seconds and computed seconds of a unit.

        A process warms up in its first unit, which is left out where others followed it.
        """
        kept = [t for times in self.times.values() for t in (times[1:] or times)]
        if not kept:
            return 0.0, 0.0
        return sum(t[0] for t in kept) / len(kept), sum(t[1] for t in kept) / len(kept)


@contextmanager
def open_session(ledger: Ledger, listeners: Sequence[OnEvent]) -> Iterator[EventHub]:
    """Make the drafts and the log of a run, yield where its events go, and remove the drafts."""
    ledger.make_drafts()
    log = EventLog(ledger.out_dir / "events" / f"{ledger.token}.jsonl")
    hub = EventHub(log, listeners)
    try:
        yield hub
    finally:
        hub(Event(kind="end"))
        log.close()
        shutil.rmtree(ledger.draft_dir, ignore_errors=True)


@contextmanager
def explain_refusals(ledger: Ledger) -> Iterator[None]:
    """Turn the system's refusal to read or write our folder into an error that names it."""
    try:
        yield
    except StoreError:
        raise  # it names the object, and says what to do
    except OSError as error:
        ours = is_fatal(error) or str(error.filename).startswith(str(ledger.out_dir))
        if not ours and error.filename is None and error.errno == errno.EIO:
            # Of an open file, which the system does not name: one of ours, or of the input.
            raise ShardmillError(
                f"{error.strerror}, while {ledger.out_dir} or its input was read or written. To go "
                "on, run the same command again"
            ) from error
        if not ours:
            raise
        refused = is_fatal(error) or isinstance(error, PermissionError)
        advice = "Free some space or get the right to write there, and" if refused else "To go on,"
        raise ShardmillError(
            f"cannot write to {ledger.out_dir}: {error.strerror}. {advice} run the same command "
            "again; or name another folder"
        ) from error


def remove_dead_drafts(ledger: Ledger) -> set[str]:
    """Remove the drafts of runs that were killed, and return the tokens of the others that live.

    A run that was only suspended, and wakes up after it was taken over, finds its drafts gone and
    can commit nothing.
    """
    # Every run makes its lock before its drafts: whoever has a draft here but no lock is dead.
    # Its lock is opened by name, because a listing of locks may be older than that of drafts.
    locks_dir = ledger.out_dir / "locks"
    for token in list_names(ledger.drafts_dir):
        if not may_live(locks_dir, token):
            shutil.rmtree(ledger.drafts_dir / token, ignore_errors=True)
    return {lock.owner.token for lock in read_locks(locks_dir)} - {ledger.token}


def tidy(ledger: Ledger) -> None:
    """Remove from a complete folder what runs left there that are over, as far as the disk allows.

    That is claims, locks and drafts of the dead, failures of units that are done now, receipts that
    were set aside, and drafts of files beside their place. What stays goes the next time.
    """
    out_dir, backend = ledger.out_dir, ledger.backend
    steps: tuple[Callable[[], None], ...] = (
        lambda: _remove_claims(ledger),
        lambda: remove_dead_locks(out_dir / "locks"),
        lambda: backend.discard(_files_in(out_dir / "failures")),
        lambda: _remove_earlier(ledger),
        lambda: backend.discard(_file_drafts(out_dir)),
    )
    for step in steps:
        with suppress(OSError):  # of a folder that may only be read, too
            step()


def _remove_claims(ledger: Ledger) -> None:
    claims_dir = ledger.out_dir / "claims"
    # Several tasks may see the last receipt, and do this at the same time.
    ledger.backend.discard(_files_in(claims_dir))
    if not isinstance(claims_dir, UrlPath):
        shutil.rmtree(claims_dir, ignore_errors=True)


def _remove_earlier(ledger: Ledger) -> None:
    # Somebody who lives may be setting receipts aside right now.
    if not remove_dead_drafts(ledger):
        ledger.backend.discard(_files_in(ledger.out_dir / "earlier"))


def _files_in(folder: Path) -> list[Path]:
    return [folder / name for name in list_names(folder)]


def _file_drafts(out_dir: Path) -> list[Path]:
    """Return what a kill left of files that a stage writes after the last receipt."""
    if isinstance(out_dir, UrlPath):
        return []
    own = [out_dir / name for name in list_names(out_dir) if name not in FOLDERS]
    beside = [path for folder in own if folder.is_dir() for path in _files_in(folder)]
    return [path for path in (*own, *beside) if is_file_draft(path)]


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal; what is done is done, and running again goes on."""

    def __init__(self, signal_number: int, message: str) -> None:
        self.signal_number = signal_number
        super().__init__(message)


def raise_interrupted(number: int, out_dir: Path) -> NoReturn:
    """Raise `Interrupted` with the name of the signal and how to go on."""
    raise Interrupted(
        number,
        f"stopped by {signal.Signals(number).name}; what is done is kept in {out_dir}: run the "
        "same command again to go on",
    )


class StopSignals:
    """While the block runs, `number` is the first of Ctrl-C and SIGTERM that came, or 0.

    With `raising`, the signal also ends the work at hand with `KeyboardInterrupt`; a second signal
    always does. SIGUSR1 calls `on_drain`, if that is given: the time is nearly over, begin nothing
    new. Outside the main thread Python cannot receive signals, and this does nothing.
    """

    def __init__(self, *, raising: bool, on_drain: Callable[[], None] | None = None) -> None:
        self.number = 0
        self._raising, self._on_drain = raising, on_drain
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
            if self._on_drain is not None:
                drain = self._on_drain
                self._before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, lambda *_: drain())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        again = self.number != 0
        self.number = number
        if again or self._raising:
            raise KeyboardInterrupt
