"""The contract of an engine: what gets the units of a run worked off, here or on a cluster.

An engine is a frozen dataclass that inherits `Engine`; it is named in `plugins.ENGINES`, or by
users as "package.module:Class". When `work` is called, the runner has planned the folder, holds its
lock and knows which units have no receipt; when it returns, the runner collects. In between, every
engine ends in `worker.work_job`, in whatever process or machine: that opens the stage, works units
and commits them. An engine never touches data, and may lose any of its workers at any time.

Only `work` must be written. The other methods are what commands ask an engine for; their defaults
refuse, or say that there is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from shardmill.errors import ConfigError
from shardmill.model.codec import build
from shardmill.model.stage import Stage, Unit
from shardmill.plugins import ENGINES
from shardmill.running.events import OnEvent
from shardmill.running.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The units of a run that have no receipt, and how to report what happens to them.

    `num_workers` is what the user asked for, or None. `on_event` may be called from any thread;
    `relay` is for events that are in the log of another process already. `should_stop` is to be
    asked before each unit: it is true after a stop signal, a full disk or a lost lock.
    """

    job: Job
    stage: Stage
    units: Sequence[Unit]
    num_workers: int | None
    on_event: OnEvent
    relay: OnEvent
    should_stop: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """What a scheduler says about the tasks that were submitted for a folder.

    `why` is the scheduler's reason for letting tasks wait. Without an answer all counts are 0.
    """

    scheduler: str
    answers: bool = True
    num_running: int = 0
    num_waiting: int = 0
    num_tasks: int = 0
    why: str = ""


class Engine:
    """Works off the units of runs; the base class of all engines."""

    # Whether workers share this machine, so that its GPUs say how many of them make sense.
    is_local: ClassVar[bool] = False
    # Whether it submits tasks that share the units by claims (see `task`). Such tasks outlive the
    # run, so its lock lets them in, and lets it watch tasks that an earlier run submitted.
    has_tasks: ClassVar[bool] = False

    def check(self) -> None:
        """Raise `ConfigError` if it cannot work here; called before anything is written."""

    def work(self, assignment: Assignment) -> None:
        """Return when every unit is done or has failed, or when told to stop."""
        raise NotImplementedError

    def preview(self, job: Job, *, num_workers: int | None) -> str:
        """Return what would be submitted for a job, which is what `--dry-run` prints."""
        raise ConfigError(f"--dry-run prints what is submitted, and {self._submits_nothing()}")

    def without_waiting(self) -> Self:
        """Return the engine that only submits, for `--no-wait`."""
        raise ConfigError(f"--no-wait returns once tasks are queued, and {self._submits_nothing()}")

    def queue_state(self, out_dir: Path) -> QueueState | None:
        """Return what is queued for a folder, for `status`; None if nothing was submitted."""
        return None

    def requeue(self) -> bool:
        """Ask for another turn of the task that this process is; return whether it was granted."""
        return False

    def _submits_nothing(self) -> str:
        name = type(self).__name__
        return f'{name} submits nothing: name a file in --on that says kind = "slurm"'


def find_queue(out_dir: Path, on: Engine | None = None) -> QueueState | None:
    """Return what is queued for a folder, by the given engine or the first of ours that knows.

    A folder names no engine of its own: reading the state of data must not import a module.
    """
    engines = [on] if on else (build(ENGINES, {"kind": name}) for name in ENGINES)
    states = (engine.queue_state(out_dir) for engine in engines)
    return next((state for state in states if state is not None), None)
