"""A few units of a stage, worked for real, to know beforehand what all of them will take."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardmill.errors import UnitFailed
from shardmill.machine import count_cpus
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Stage, Unit
from shardmill.run.events import Event
from shardmill.run.plan import store_plan
from shardmill.run.runner import run_stage
from shardmill.shards.ledger import Ledger


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
    inputs = stage.inputs()
    units = list(stage.units())
    chosen = spread(units, num_units)
    ledger = Ledger(out.absolute(), secrets.token_hex(8))
    ledger.make_folders()
    ledger.make_drafts()
    store_plan(ledger, stage, inputs, chosen)
    clock = _Clock()
    report = run_stage(stage, out, workers=workers, max_skip_rate=max_skip_rate, on_event=clock)
    if report.manifest is None:
        raise UnitFailed("; ".join(f"unit {name}: {message}" for name, message in report.failures))
    seconds, cpu_seconds = clock.unit()
    return Tried(
        num_units=len(units),
        num_tried=len(chosen),
        num_workers=max(1, count_cpus() if workers is None else workers),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        manifest=report.manifest,
    )


def spread(units: Sequence[Unit], count: int) -> list[Unit]:
    """Return `count` units at even distances, or all if there are no more."""
    count = min(count, len(units))
    return [units[(2 * n + 1) * len(units) // (2 * count)] for n in range(count)]


@dataclass(slots=True)
class _Clock:
    """Notes what the units of each process took."""

    times: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        if event.kind == "done":
            self.times.setdefault(event.pid, []).append((event.seconds, event.cpu_seconds))

    def unit(self) -> tuple[float, float]:
        """Return the mean seconds and computed seconds of a unit.

        A process warms up in its first unit, which is left out where others followed it.
        """
        kept = [t for times in self.times.values() for t in (times[1:] or times)]
        if not kept:
            return 0.0, 0.0
        return sum(t[0] for t in kept) / len(kept), sum(t[1] for t in kept) / len(kept)
