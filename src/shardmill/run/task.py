"""A task of a job: claims units of a shared folder and works them off until none is left.

Tasks know nothing of each other but their claims and heartbeats. Any number may run, on any number
of machines that share the folder; they may start late, end early, be killed and started again.
SIGUSR1 says that the time is nearly over: the task finishes what it has begun and takes no more.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from shardmill.errors import LockedError, StaleError
from shardmill.io.receipts import Ledger
from shardmill.model.manifest import stage_digest
from shardmill.model.stage import Stage, Unit
from shardmill.run.claims import Claims
from shardmill.run.cpus import count_cpus
from shardmill.run.events import Event, OnEvent
from shardmill.run.fleet import Fleet
from shardmill.run.job import Job
from shardmill.run.jobfile import JobFile
from shardmill.run.leftovers import remove_claims
from shardmill.run.local import ProcessCrew
from shardmill.run.lock import FolderLock, LockTiming, task_lock_name
from shardmill.run.naming import naming
from shardmill.run.opened import opened
from shardmill.run.plan import collect
from shardmill.run.report import RunBooks, RunReport
from shardmill.run.signals import Drain, StopSignals, raise_interrupted
from shardmill.run.supply import Supply
from shardmill.run.watch import LifeWatch


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task did, how many units are not over, and whether it ran out of time for them."""

    run: RunReport
    num_left: int
    out_of_time: bool


def run_task(
    found: JobFile,
    *,
    workers: int | None = None,
    on_event: OnEvent | None = None,
    timing: LockTiming | None = None,
) -> TaskReport:
    """Work on a job until nothing is left to claim, and complete the folder if that was all."""
    job, timing = found.job.for_run(secrets.token_hex(8)), timing or LockTiming()
    ledger = job.ledger
    ledger.depot.make_folder(ledger.out_dir / "claims")
    books = RunBooks(ledger.out_dir)
    lock = FolderLock(
        ledger.out_dir / "locks", task_lock_name(ledger.token), ledger.token, timing=timing
    )
    listeners: list[OnEvent] = [books, on_event] if on_event else [books]
    with naming(ledger), lock, opened(ledger, listeners) as tell:
        units = _planned_units(ledger, found.stage)
        num_done = len(ledger.receipt_names())
        tell(Event(kind="plan", num_units=len(units), num_done=num_done))
        watch = LifeWatch(ledger.out_dir / "locks", timing)
        supply = Supply(ledger, units, Claims(ledger.out_dir / "claims", ledger.token), watch, tell)
        _work(job, supply, count_cpus() if workers is None else workers, lock, tell)
        num_left = supply.num_left()
        manifest = None
        if num_left == 0:
            rate = job.max_skip_rate
            manifest = collect(ledger, found.stage, units, max_skip_rate=rate)
        if manifest is not None:
            remove_claims(ledger)
        out_of_time = supply.is_closed_early and num_left > 0
        return TaskReport(books.report(manifest), num_left, out_of_time)


def _planned_units(ledger: Ledger, stage: Stage) -> list[Unit]:
    record = ledger.read_stage()
    # Our lock is made: whoever plans anew from here on sees it, after taking inputs.json away.
    is_ours = record is not None and record.digest == stage_digest(stage)
    if not is_ours or ledger.read_inputs() is None:
        raise StaleError(
            f"{ledger.out_dir} is not, or no longer, the folder that this job was made for: run "
            "the command that makes the folder again"
        )
    return ledger.read_units()


def _work(job: Job, supply: Supply, num_workers: int, lock: FolderLock, on_event: OnEvent) -> None:
    def tell(event: Event) -> None:
        supply.note(event)
        on_event(event)

    with StopSignals(raising=False) as signals, Drain(supply.close):
        try:
            Fleet(
                job,
                (),
                ProcessCrew(job, num_workers),
                on_event=tell,
                should_stop=_stopper(job.ledger, lock, signals),
                more=supply,
            ).run()
        finally:
            supply.give_back()
            _raise_if_stopped(job.ledger, signals, lock)


def _raise_if_stopped(ledger: Ledger, signals: StopSignals, lock: FolderLock) -> None:
    if signals.number:
        raise_interrupted(signals.number, ledger.out_dir)
    if _is_fenced(ledger, lock):
        raise LockedError(
            f"other tasks took this one for dead and work on its units in {ledger.out_dir}; this "
            "one stops here"
        )


def _stopper(ledger: Ledger, lock: FolderLock, signals: StopSignals) -> Callable[[], bool]:
    return lambda: signals.number != 0 or _is_fenced(ledger, lock)


def _is_fenced(ledger: Ledger, lock: FolderLock) -> bool:
    return lock.lost or not ledger.draft_dir.exists()
