"""A task of a job: claims units of a shared folder and works them off until none is left.

Tasks know nothing of each other but their claims and heartbeats. Any number may run, on any number
of machines that share the folder; they may start late, end early, be killed and started again.
SIGUSR1 says that the time is nearly over: the task finishes what it has begun and takes no more.

Which task works on which unit is told by files, without a server: claims/UNIT.N, where N counts the
tries of a unit from 1. Whoever creates UNIT.1 works on it; creating is exclusive, so it is one. The
file holds the token of its maker, who writes FREE into it to give the unit back. UNIT.2 may be
created when UNIT.1 is free, or when its maker is dead. No claim goes away before the folder is
complete, so that two tasks never believe to have the same try.

A claim only saves double work. Receipts say what is done.
"""

from __future__ import annotations

import random
import re
import secrets
import shutil
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardmill.errors import LockedError, StaleError
from shardmill.machine import count_cpus
from shardmill.model.manifest import stage_digest
from shardmill.model.stage import Stage, Unit
from shardmill.running.engine import Job, keep_failure
from shardmill.running.events import Event, EventHub, OnEvent
from shardmill.running.local import ProcessSpawner
from shardmill.running.lock import FolderLock, HeartbeatWatch, LockTiming, task_lock_name
from shardmill.running.plan import collect
from shardmill.running.pool import WorkerPool
from shardmill.running.progress import Progress, RunReport
from shardmill.running.runner import (
    StopSignals,
    explain_refusals,
    open_session,
    raise_interrupted,
    tidy,
)
from shardmill.shards.ledger import Ledger
from shardmill.storage.files import backend_of

FREE = "free"
# What is read from a claim becomes a part of paths.
TOKEN = re.compile(r"[0-9a-z]{1,64}")
LOOK_PAUSE_S = 1.0  # a look lists three folders, which a file server feels from many tasks
# After so many claims that others made first, what we know of the claims is too old.
MAX_MISSES = 8
# A unit may be innocent of the deaths of many tasks: a scheduler preempts, a node breaks.
MAX_DEATHS = 10


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task did, how many units are not over, and whether it ran out of time for them."""

    run: RunReport
    num_left: int
    out_of_time: bool


def run_task(
    job: Job,
    *,
    workers: int | None = None,
    on_event: OnEvent | None = None,
    timing: LockTiming | None = None,
) -> TaskReport:
    """Work on a job until nothing is left to claim, and complete the folder if that was all.

    Raises `StaleError` if the folder was planned for another stage or input since the job was
    written, `LockedError` if other tasks took this one for dead.
    """
    job, timing = job.for_run(secrets.token_hex(8)), timing or LockTiming()
    stage = job.load_stage()
    ledger, locks_dir = job.ledger, job.ledger.out_dir / "locks"
    ledger.backend.make_folder(ledger.out_dir / "claims")
    progress = Progress()
    listeners: list[OnEvent] = [progress, on_event] if on_event else [progress]
    lock = FolderLock(locks_dir, task_lock_name(ledger.token), ledger.token, timing=timing)
    with explain_refusals(ledger), lock, open_session(ledger, listeners) as hub:
        units = _planned_units(ledger, stage)
        num_done = len(ledger.receipt_names())
        hub(Event(kind="plan", num_units=len(units), num_done=num_done))
        claims = Claims(ledger.out_dir / "claims", ledger.token)
        claimed = ClaimedUnits(ledger, units, claims, HeartbeatWatch(locks_dir, timing), hub)
        _work(job, claimed, count_cpus() if workers is None else workers, lock, hub)
        num_left, manifest = claimed.num_left(), None
        if num_left == 0:  # whoever sees this collects; several may, and write the same bytes
            manifest = collect(ledger, stage, units, job.accepts)
        if manifest is not None:
            tidy(ledger)
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
            # Freed claims are taken at once; those of a task that vanishes only once it is dead.
            claimed.give_back()
            if signals.number:
                raise_interrupted(signals.number, job.ledger.out_dir)
            if is_taken_over():
                raise LockedError(
                    f"other tasks took this one for dead and work on its units in "
                    f"{job.ledger.out_dir}; this one stops here"
                )


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a folder, as the task `token` sees and makes them."""

    claims_dir: Path
    token: str

    def latest(self) -> dict[str, int]:
        """Return the number of the last try of every unit that was ever claimed."""
        tries: dict[str, int] = {}
        # Without the folder, another task has just completed everything.
        with suppress(FileNotFoundError):
            for path in self.claims_dir.iterdir():
                unit_name, _, number = path.name.rpartition(".")
                if unit_name and number.isdigit():
                    tries[unit_name] = max(tries.get(unit_name, 0), int(number))
        return tries

    def take(self, unit_name: str, number: int) -> bool:
        """Make the claim and return True, unless somebody else was faster."""
        path = self._path(unit_name, number)
        try:
            return backend_of(self.claims_dir).create(path, self.token.encode())
        except FileNotFoundError:
            return False

    def free(self, unit_name: str, number: int) -> None:
        """Give back a unit; the claim must be our own."""
        mine = self.token.encode()
        with suppress(OSError):
            backend_of(self.claims_dir).renew(
                self._path(unit_name, number),
                lambda content: content == mine,
                FREE.encode().ljust(len(mine)),
            )

    def owner(self, unit_name: str, number: int) -> str:
        """Return the token of a claim's maker, FREE, or '' if it died before it could say so."""
        try:
            text = self._path(unit_name, number).read_bytes().decode().strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return text if TOKEN.fullmatch(text) else ""

    def num_deaths(self, unit_name: str, number: int) -> int:
        """Return how many of the tries up to `number` were not given back."""
        return sum(self.owner(unit_name, n) != FREE for n in range(1, number + 1))

    def _path(self, unit_name: str, number: int) -> Path:
        return self.claims_dir / f"{unit_name}.{number}"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A unit that may be claimed as its try `number`; `owner` made the try before."""

    unit: Unit
    number: int
    owner: str


class ClaimedUnits:
    """The units that a task gets by claims: those without a receipt that no other task works on.

    Tasks begin at random places of the list, so that they seldom want the same unit, and each goes
    on through neighbours, which share a compressed input. Units that tasks died at come last.
    """

    def __init__(
        self,
        ledger: Ledger,
        units: Sequence[Unit],
        claims: Claims,
        watch: HeartbeatWatch,
        on_event: OnEvent,
    ) -> None:
        self._ledger, self._claims, self._watch, self._on_event = ledger, claims, watch, on_event
        first = int(random.Random(claims.token).random() * len(units))
        self._units = (*units[first:], *units[:first])
        self._candidates: deque[_Candidate] = deque()
        self._claimed: dict[str, int] = {}
        # What a listing may not show yet: tries that others made, and units that are over.
        self._missed: dict[str, int] = {}
        self._ended: set[str] = set()
        self._is_undecided = self._is_closed = False
        self.is_closed_early = False
        self._next_look_s = 0.0

    def take(self, count: int) -> list[Unit]:
        """Return up to `count` units that are now ours; none if there are none right now."""
        taken: list[Unit] = []
        num_misses = 0
        while len(taken) < count and not self._is_closed:
            if not self._candidates or num_misses == MAX_MISSES:
                num_misses = 0
                if taken or not self._look():
                    break
            candidate = self._candidates.popleft()
            if self._claim(candidate):
                taken.append(candidate.unit)
            else:
                num_misses += 1
        return taken

    def is_waiting(self) -> bool:
        """Say whether units may still come: their claims belong to tasks that may be dead."""
        return not self._is_closed and (bool(self._candidates) or self._is_undecided)

    def note(self, event: Event) -> None:
        """Learn from the events of the task which units need not be given back."""
        if event.kind in ("done", "failed"):
            self._claimed.pop(event.unit, None)
            self._ended.add(event.unit)

    def close(self) -> None:
        """Take no more units, because the time is nearly over."""
        self._is_closed = self.is_closed_early = True

    def give_back(self) -> None:
        """Take no more, and free the claims of units that were not done."""
        self._is_closed = True
        for name, number in self._claimed.items():
            self._claims.free(name, number)

    def num_left(self) -> int:
        """Return how many units have neither a receipt nor failed."""
        over = self._over()
        left = [unit.name for unit in self._units if unit.name not in over]
        if not self.is_closed_early:
            # Few are left, and a listing may be old: the last of two tasks must see that it is.
            left = [name for name in left if not self._is_over(name)]
        return len(left)

    def _claim(self, candidate: _Candidate) -> bool:
        name = candidate.unit.name
        if not self._claims.take(name, candidate.number):
            self._missed[name] = candidate.number
            return False
        # Between our look and our claim another may have done the unit and ended.
        if self._ledger.receipt_path(name).exists():
            self._ended.add(name)
            return False
        self._claimed[name] = candidate.number
        return True

    def _look(self) -> bool:
        """Look what may be claimed, now and then; return whether there is something."""
        self._candidates.clear()
        if time.monotonic() < self._next_look_s:
            return False
        found = self._find_candidates()
        # After the claims: whoever has one made a lock before it.
        owners = {candidate.owner for candidate in found} - {FREE}
        self._watch.look(owners)
        self._is_undecided = any(
            not self._watch.is_dead(owner) and not self._watch.is_alive(owner) for owner in owners
        )
        free = [c for c in found if c.owner == FREE or self._take_from_dead(c)]
        self._candidates.extend(sorted(free, key=lambda candidate: candidate.number))
        if not self._candidates:
            self._next_look_s = time.monotonic() + LOOK_PAUSE_S
        return bool(self._candidates)

    def _find_candidates(self) -> list[_Candidate]:
        over, tries = self._over(), self._claims.latest()
        found = []
        for unit in self._units:
            if unit.name not in over and unit.name not in self._claimed:
                number = max(tries.get(unit.name, 0), self._missed.get(unit.name, 0))
                owner = self._claims.owner(unit.name, number) if number else FREE
                found.append(_Candidate(unit, number + 1, owner))
        return found

    def _over(self) -> set[str]:
        return self._ledger.receipt_names() | self._ledger.failure_names() | self._ended

    def _is_over(self, name: str) -> bool:
        paths = (self._ledger.receipt_path(name), self._ledger.failure_path(name))
        return any(path.exists() for path in paths)

    def _take_from_dead(self, candidate: _Candidate) -> bool:
        """Say whether a unit is free because its owner is dead, and worth another try."""
        if not self._watch.is_dead(candidate.owner):
            return False
        # If the owner was only suspended, it finds its drafts gone and can commit nothing.
        if candidate.owner:
            shutil.rmtree(self._ledger.drafts_dir / candidate.owner, ignore_errors=True)
        name = candidate.unit.name
        if candidate.number <= MAX_DEATHS:
            return True
        num_deaths = self._claims.num_deaths(name, candidate.number - 1)
        if num_deaths < MAX_DEATHS:
            return True
        message = (
            f"{num_deaths} tasks ended without a word while they worked on it: it may need more "
            "memory or time than a task has"
        )
        keep_failure(self._ledger, name, message)
        self._on_event(Event(kind="failed", unit=name, message=message))
        return False
