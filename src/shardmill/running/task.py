"""A task of a job: claims units of a shared folder and works them off until none is left.

Tasks know nothing of each other but their claims and heartbeats. Any number may run, on any number
of machines that share the folder; they may start late, end early, be killed and started again.
SIGUSR1 says that the time is nearly over: the task finishes what it has begun and takes no more.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from shardmill.errors import LockedError, StaleError
from shardmill.machine import count_cpus
from shardmill.model.manifest import stage_digest
from shardmill.model.stage import Stage, Unit
from shardmill.running.claims import ClaimedUnits, Claims
from shardmill.running.events import Event, EventHub, OnEvent
from shardmill.running.job import Job, JobFile
from shardmill.running.local import ProcessSpawner
from shardmill.running.lock import FolderLock, HeartbeatWatch, LockTiming, task_lock_name
from shardmill.running.plan import collect
from shardmill.running.pool import WorkerPool
from shardmill.running.progress import Progress, RunReport
from shardmill.running.session import (
    StopSignals,
    explain_refusals,
    open_session,
    raise_interrupted,
    remove_claims,
)
from shardmill.shards.ledger import Ledger


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
    """Work on a job until nothing is left to claim, and complete the folder if that was all.

    Raises `StaleError` if the folder was planned for another stage or input since the job was
    written, `LockedError` if other tasks took this one for dead.
    """
    job, timing = found.job.for_run(secrets.token_hex(8)), timing or LockTiming()
    ledger, locks_dir = job.ledger, job.ledger.out_dir / "locks"
    ledger.backend.make_folder(ledger.out_dir / "claims")
    progress = Progress()
    listeners: list[OnEvent] = [progress, on_event] if on_event else [progress]
    lock = FolderLock(locks_dir, task_lock_name(ledger.token), ledger.token, timing=timing)
    with explain_refusals(ledger), lock, open_session(ledger, listeners) as hub:
        units = _planned_units(ledger, found.stage)
        num_done = len(ledger.receipt_names())
        hub(Event(kind="plan", num_units=len(units), num_done=num_done))
        claims = Claims(ledger.out_dir / "claims", ledger.token)
        claimed = ClaimedUnits(ledger, units, claims, HeartbeatWatch(locks_dir, timing), hub)
        _work(job, claimed, count_cpus() if workers is None else workers, lock, hub)
        num_left, manifest = claimed.num_left(), None
        if num_left == 0:
            manifest = collect(ledger, found.stage, units, max_skip_rate=job.max_skip_rate)
        if manifest is not None:
            remove_claims(ledger)
        out_of_time = claimed.is_closed_early and num_left > 0
        return TaskReport(progress.report(ledger.out_dir, manifest), num_left, out_of_time)


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


def _work(
    job: Job, claimed: ClaimedUnits, num_workers: int, lock: FolderLock, hub: EventHub
) -> None:
    def on_event(event: Event) -> None:
        claimed.note(event)
        hub(event)

    def is_taken_over() -> bool:
        return lock.lost or not job.ledger.draft_dir.exists()

    with StopSignals(raising=False, on_drain=claimed.close) as signals:
        try:
            WorkerPool(
                job,
                (),
                ProcessSpawner(job, num_workers),
                on_event=on_event,
                should_stop=lambda: signals.number != 0 or is_taken_over(),
                more=claimed,
            ).run()
        finally:
            claimed.give_back()
            if signals.number:
                raise_interrupted(signals.number, job.ledger.out_dir)
            if is_taken_over():
                raise LockedError(
                    f"other tasks took this one for dead and work on its units in "
                    f"{job.ledger.out_dir}; this one stops here"
                )
