"""What a recipe will take, from a few units of each step worked for real.

A step runs on what the step before it made of a few units, in a folder that is removed afterwards.
What it took is scaled by how much more there is: more units of this step, and more of everything
before it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardmill.api.recipe import Recipe, Step, opened_recipe
from shardmill.api.running import RunOptions
from shardmill.api.values import Place
from shardmill.errors import ConfigError, ShardmillError
from shardmill.machine import count_cpus
from shardmill.model.stage import Stage
from shardmill.running.progress import RunReport
from shardmill.running.runner import Tried, try_units

NUM_UNITS = 4
CROWD = 1.5  # processes that want a processor, for each there is
BUSY = 0.7  # share of the time in which a process computes, above which processors bind
# A trial runs here and at once, whatever the recipe says of clusters and parts.
HERE_ONLY = ("on", "part", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one step will take; the whole of its output is `scale` times what the trial made."""

    step: str
    scale: float
    num_tried: int
    num_units: int
    num_samples: int
    num_workers: int
    seconds: float
    num_bytes: int
    busy: float
    crowded: bool
    on_gpu: bool
    prices: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Samples a second, of all workers."""
        return self.num_samples / max(self.seconds, 1e-9)

    @property
    def worker_hours(self) -> float:
        """Hours of a processor, or of a GPU, that are paid for."""
        return self.seconds * self.num_workers / 3600

    @property
    def cost(self) -> float:
        """The price of the work; what is stored costs by the month."""
        kind = "gpu_hour" if self.on_gpu else "cpu_hour"
        return self.worker_hours * self.prices.get(kind, 0.0)

    @property
    def bound(self) -> str | None:
        """What limits the step, None if it cannot be told."""
        if self.busy >= BUSY:
            return "processors"
        if self.crowded:  # others took the processors, so waiting for them tells nothing
            return None
        return "GPU" if self.on_gpu else "disk or network"


@dataclass(slots=True)
class Trial:
    """A runner that tries a few units where all would be run, and notes what they took."""

    num_units: int
    tried: list[Tried] = field(default_factory=list)
    is_local: bool = True

    def run(self, stage: Stage, out: Path, options: RunOptions) -> RunReport:
        """Try a few units, and return the report of a folder that holds no others."""
        found = try_units(
            stage,
            out,
            num_units=self.num_units,
            workers=options.get("workers"),
            max_skip_rate=options.get("max_skip_rate", 0.1),
        )
        self.tried.append(found)
        manifest = found.manifest
        return RunReport(
            out_dir=out,
            num_units=found.num_tried,
            num_done_before=0,
            num_done=found.num_tried,
            failures=(),
            num_in=manifest.num_in,
            num_kept=manifest.num_kept,
            num_bytes=manifest.num_bytes,
            seconds=found.seconds * found.num_tried,
            manifest=manifest,
        )


def quote(recipe: Place, *, units: int = NUM_UNITS) -> list[Estimate]:
    """Return what each step of a recipe that writes something will take, from a few units of it."""
    with opened_recipe(recipe) as found:
        return list(quote_steps(found, num_units=units))


def quote_steps(recipe: Recipe, *, num_units: int) -> Iterator[Estimate]:
    """Yield the estimates one by one, as they are made."""
    if all(step.out is None for step in recipe.steps):
        raise ConfigError("no step of the recipe writes anything: there is nothing to try")
    with tempfile.TemporaryDirectory(prefix=".quote-", dir=Path.cwd()) as folder:
        places: dict[str, str] = {}
        scales: dict[str, float] = {}
        for number, step in enumerate(recipe.steps):
            if step.out is None:
                continue
            place = f"{folder}/{number}-{Path(step.out).name}"
            places[os.path.normpath(step.out)] = place
            trial = Trial(num_units)
            took = _try(step, places, trial)
            before = [scales.get(os.path.normpath(name), 1.0) for name in step.inputs]
            estimate = _estimate(step, trial, max(before), took, Path(place), recipe.prices)
            scales[os.path.normpath(step.out)] = estimate.scale
            yield estimate


def _try(step: Step, places: Mapping[str, str], trial: Trial) -> float:
    """Call the step on the folders of the trial, and return the seconds that it took."""
    options = {name: value for name, value in step.options.items() if name not in HERE_ONLY}
    began = time.monotonic()
    try:
        replace(step, options=options).moved(places).call(on=trial)
    except ShardmillError as error:
        raise ConfigError(f"the trial of `{step.title}` failed: {error}") from error
    return time.monotonic() - began


def _estimate(
    step: Step,
    trial: Trial,
    scale: float,
    took: float,
    out: Path,
    prices: Mapping[str, float],
) -> Estimate:
    if not trial.tried:  # a plain function over a folder: one process, linear in its input
        return Estimate(
            step=step.title,
            scale=scale,
            num_tried=1,
            num_units=1,
            num_samples=0,
            num_workers=1,
            seconds=took * scale,
            num_bytes=round(out.stat().st_size * scale) if out.is_file() else 0,
            busy=1.0,
            crowded=False,
            on_gpu=False,
            prices=prices,
        )
    tried = trial.tried[-1]
    whole = scale / max(tried.share, 1e-12)
    num_samples = tried.manifest.num_in * whole
    whole *= min(1.0, step.options.get("limit", num_samples) / max(num_samples, 1e-12))
    num_units = max(1, round(tried.num_tried * whole))
    workers = min(tried.num_workers, num_units)
    return Estimate(
        step=step.title,
        scale=whole,
        num_tried=tried.num_tried,
        num_units=num_units,
        num_samples=round(tried.manifest.num_in * whole),
        num_workers=workers,
        seconds=tried.seconds * num_units / workers,
        num_bytes=round(tried.manifest.num_bytes * whole),
        busy=tried.cpu_seconds / max(tried.seconds, 1e-9),
        crowded=os.getloadavg()[0] > CROWD * count_cpus(),
        on_gpu=step.verb == "codes" and _has_gpu(),
        prices=prices,
    )


def _has_gpu() -> bool:
    from shardmill.tokens.vq.encode import count_devices

    return count_devices() > 0
