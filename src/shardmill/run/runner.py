"""Running a stage into a folder: plan, skip what is done, work off the rest, collect.

Running again goes on where it stopped, because done means: has a receipt. A finished folder is
recognised by its manifest alone. A folder that another spec made is refused, and so is a finished
one that other inputs made; in an unfinished one, what did not change with the inputs stays.

Tries the rejects of a finished folder again: downloads that failed then may succeed now.

The units that have rejects of the given reasons become pending, but their receipts are set aside,
not thrown away: when such a unit is done again, the samples that it has already are taken from its
own shards, and only the others are fetched. The result is that of a run in which they had never
failed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shardmill.errors import ConfigError, FormatError, LockedError
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.manifest import Manifest, Receipt, stage_digest
from shardmill.model.stage import Stage, Unit
from shardmill.run.engine import Engine, Errand
from shardmill.run.events import Event, OnEvent
from shardmill.run.job import Job
from shardmill.run.local import Local
from shardmill.run.lock import FolderLock, LockTiming, part_lock_name
from shardmill.run.plan import (
    Planned,
    check_fresh,
    check_place,
    check_spec,
    check_writable,
    collect,
    part_of,
    plan_units,
)
from shardmill.run.progress import RunBooks, RunReport
from shardmill.run.setup import (
    StopSignals,
    Teller,
    naming,
    opened,
    raise_interrupted,
    remove_claims,
    remove_dead_drafts,
)
from shardmill.shards.ledger import Ledger, set_aside
from shardmill.storage.path import as_path


def run_stage(
    stage: Stage,
    out: Path | str,
    *,
    on: Engine | None = None,
    workers: int | None = None,
    retries: int = 1,
    max_skip_rate: float = 0.0,
    part: tuple[int, int] = (1, 1),
    on_event: OnEvent | None = None,
    timing: LockTiming | None = None,
) -> RunReport:
    """Do what is not done yet of a stage in the folder `out`, and complete it if that was all.

    `on` is the engine, by default this machine. `workers` is the number of processes, by default
    one for each usable processor; 0 works in this process. `part` is (i, n): only the i-th of n
    parts, so that n machines share the units. A unit that fails is in the report, and does not
    stop the others. A stop signal is `Interrupted`.
    """
    engine = on or Local()
    # As workers will load it: a float that was given as an int would have another digest there.
    stage = from_plain(to_plain(stage), where="stage")
    ledger = Ledger(as_path(out).absolute(), secrets.token_hex(8))
    books = RunBooks(ledger.out_dir)
    check_writable(ledger)
    with naming(ledger):
        manifest = _finished(ledger, stage)
        if manifest is not None:
            return books.report(manifest)
        _check_options(workers, retries, max_skip_rate, part)
        check_place(ledger)
        lock_name = engine.lock_name(part)
        engine.check()
        job = Job(
            stage=to_plain(stage),
            out_dir=str(ledger.out_dir),
            token=ledger.token,
            retries=retries,
            max_skip_rate=max_skip_rate,
        )
        ledger.make_folders()
        lock = _lock(ledger, lock_name, timing, on_event)
        with lock, opened(ledger, [books, on_event] if on_event else [books]) as tell:
            planned = _plan(ledger, stage, timing)
            units = planned.units
            if planned.num_kept is not None:
                tell(Event(kind="wait", message=_describe_new_plan(planned)))
            _work(engine, stage, job, part_of(units, part), workers, lock, tell)
            manifest = collect(ledger, stage, units, max_skip_rate=max_skip_rate)
            if manifest is not None:
                remove_claims(ledger)
            return books.report(manifest)


def _lock(
    ledger: Ledger, name: str, timing: LockTiming | None, on_event: OnEvent | None
) -> FolderLock:
    def tell_wait(message: str) -> None:
        if on_event:
            on_event(Event(kind="wait", message=message))

    return FolderLock(
        ledger.out_dir / "locks", name, ledger.token, timing=timing, on_wait=tell_wait
    )


def _finished(ledger: Ledger, stage: Stage) -> Manifest | None:
    if not ledger.manifest_path.exists() or not check_fresh(ledger, stage):
        return None
    # A manifest that cannot be read is made again from the receipts.
    with suppress(FormatError):
        return ledger.read_manifest()
    return None


def _check_options(
    workers: int | None, retries: int, max_skip_rate: float, part: tuple[int, int]
) -> None:
    """Check everything that a user may have mistyped."""
    if (workers is not None and workers < 0) or retries < 0:
        raise ConfigError(f"workers and retries cannot be negative: {workers}, {retries}")
    if not 0 <= max_skip_rate <= 1:
        raise ConfigError(f"max_skip_rate is a share from 0 to 1, got {max_skip_rate}")
    part_of([], part)


def _plan(ledger: Ledger, stage: Stage, timing: LockTiming | None) -> Planned:
    """Return the units of the folder; of parts that start together one lists, the others wait."""
    locks_dir = ledger.out_dir / "locks"
    with FolderLock(locks_dir, "plan", ledger.token, wait=True, timing=timing):
        remove_dead_drafts(ledger)
        return plan_units(ledger, stage, lambda: remove_dead_drafts(ledger))


def _describe_new_plan(planned: Planned) -> str:
    return f"inputs changed: {planned.num_kept} of {len(planned.units)} units are done and stay"


def _work(
    engine: Engine,
    stage: Stage,
    job: Job,
    units: Sequence[Unit],
    num_workers: int | None,
    lock: FolderLock,
    tell: Teller,
) -> None:
    todo = job.ledger.pending(units, stage_digest(stage))
    num_done = len(units) - len(todo)
    tell(Event(kind="plan", num_units=len(units), num_done=num_done))
    with StopSignals(raising=num_workers == 0) as signals:
        errand = Errand(
            job=job,
            stage=stage,
            units=todo,
            num_workers=num_workers,
            on_event=tell,
            relay=tell.relay,
            should_stop=lambda: lock.lost or signals.number != 0,
        )
        try:
            engine.work(errand)
        finally:
            _raise_if_stopped(job.ledger, signals, lock)


def _raise_if_stopped(ledger: Ledger, signals: StopSignals, lock: FolderLock) -> None:
    if signals.number:
        raise_interrupted(signals.number, ledger.out_dir)
    if lock.lost:
        raise LockedError(
            f"another run took over {ledger.out_dir}, because this one gave no sign of life for "
            "a while; this one stops here"
        )


def retry_rejects(
    out: Path | str, stage: Stage, reasons: Sequence[str], *, timing: LockTiming | None = None
) -> int:
    """Make units pending that have rejects whose reason begins with one of these; return how many.

    Running the stage does them. A folder that was not begun, or made otherwise, is left to that.
    """
    ledger = Ledger(as_path(out).absolute(), secrets.token_hex(8))
    # The run that follows plans an unfinished folder anew if its inputs changed.
    check = check_fresh if ledger.manifest_path.exists() else check_spec
    if not check(ledger, stage):
        return 0
    ledger.make_folders()
    with FolderLock(ledger.out_dir / "locks", part_lock_name((1, 1)), ledger.token, timing=timing):
        ledger.make_drafts()
        found = ledger.read_receipts(ledger.read_units(), stage_digest(stage))
        chosen = [receipt for receipt in found if receipt and _has(receipt, tuple(reasons))]
        if chosen:
            set_aside(ledger, chosen)
        ledger.draft_dir.rmdir()
    return len(chosen)


def _has(receipt: Receipt, reasons: tuple[str, ...]) -> bool:
    return any(reason.startswith(reasons) for reason in receipt.skipped)
