"""The contract of an engine: whoever works off the units of a run, here or on a cluster.

An engine is a frozen dataclass. The runner has planned, holds the folder's lock and will collect;
the engine sees that the units get worked, by whatever means, and every means ends in `work_off`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardmill.model.stage import Stage, Unit
from shardmill.run.events import OnEvent
from shardmill.run.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """The units of a run that have no receipt, and whom to tell what happens to them.

    `num_workers` is what the user asked for, or None. `relay` tells what is in other logs already.
    """

    job: Job
    stage: Stage
    units: Sequence[Unit]
    num_workers: int | None
    on_event: OnEvent
    relay: OnEvent
    should_stop: Callable[[], bool]


class Engine(Protocol):
    """Works off the units of runs."""

    def lock_name(self, part: tuple[int, int]) -> str:
        """Return the name of the lock that a run holds while this engine works."""

    def check(self) -> None:
        """Raise `ConfigError` if it cannot work here; called before anything is written."""

    def work(self, errand: Errand) -> None:
        """Return when every unit is done or has failed, or when told to stop."""
