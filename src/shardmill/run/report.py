"""The books of a run: events added up, and the report that run_stage returns."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from shardmill.model.manifest import Manifest
from shardmill.run.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run did and how the folder stands; `manifest` is there when it is complete.

    `num_units` and `num_done_before` count the part that this run was to do; `num_in`, `num_kept`
    and `num_bytes` count what it did itself.
    """

    out_dir: Path
    num_units: int
    num_done_before: int
    num_done: int
    failures: tuple[tuple[str, str], ...]
    num_in: int
    num_kept: int
    num_bytes: int
    seconds: float
    manifest: Manifest | None

    @property
    def complete(self) -> bool:
        """Whether every unit of the folder, of all parts, is done."""
        return self.manifest is not None


@dataclass(slots=True)
class RunBooks:
    """Adds up the events of a run."""

    out_dir: Path
    began: float = field(default_factory=time.monotonic)
    num_units: int = 0
    num_done_before: int = 0
    num_done: int = 0
    num_in: int = 0
    num_kept: int = 0
    num_bytes: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        """Enter an event."""
        if event.kind == "plan":
            self.num_units, self.num_done_before = event.num_units, event.num_done
        elif event.kind == "failed":
            self.failures[event.unit] = event.message
        elif event.kind == "done":
            self.num_done += 1
            self.num_in += event.num_in
            self.num_kept += event.num_kept
            self.num_bytes += event.num_bytes

    def report(self, manifest: Manifest | None) -> RunReport:
        """Return the report of the run, now that it is over."""
        return RunReport(
            out_dir=self.out_dir,
            num_units=self.num_units,
            num_done_before=self.num_done_before,
            num_done=self.num_done,
            failures=tuple(sorted(self.failures.items())),
            num_in=self.num_in,
            num_kept=self.num_kept,
            num_bytes=self.num_bytes,
            seconds=time.monotonic() - self.began,
            manifest=manifest,
        )
