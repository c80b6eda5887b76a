"""What a recipe will take, from a few units of each step worked for real.

A step runs on what the step before it made of a few units, in a folder that is removed afterwards.
What it took is scaled by how much more there is: more units of this step, and more of everything
before it.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import click

from shardmill.cli.recipe import Find, Recipe, Step, call, moved
from shardmill.cli.running import Trial
from shardmill.errors import ConfigError, ShardmillError
from shardmill.machine import count_cpus
from shardmill.run.runner import Tried

NUM_UNITS = 4
CROWD = 1.5  # processes that want a processor, for each there is
BUSY = 0.7  # share of the time in which a process computes, above which processors bind
# A trial runs here and at once, whatever the recipe says of clusters and parts.
HERE_ONLY = ("on", "part", "json")


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


def quote(recipe: Recipe, find: Find, *, num_units: int = NUM_UNITS) -> Iterator[Estimate]:
    """Yield an estimate for each step that writes something, in order."""
    with tempfile.TemporaryDirectory(prefix=".quote-", dir=Path.cwd()) as folder:
        places: dict[str, str] = {}
        scales: dict[str, float] = {}
        for number, step in enumerate(recipe.steps):
            if step.out is None:
                continue
            place = f"{folder}/{number}-{Path(step.out).name}"
            places[os.path.normpath(step.out)] = place
            trial = Trial(num_units)
            took = _run_quietly(step, places, find, trial)
            scale = max(
                (scales.get(os.path.normpath(name), 1.0) for name in step.inputs), default=1.0
            )
            estimate = _estimate(step, trial, scale, took, Path(place), recipe.prices)
            scales[os.path.normpath(step.out)] = estimate.scale
            yield estimate


def _run_quietly(step: Step, places: Mapping[str, str], find: Find, trial: Trial) -> float:
    """Run the step's command on the trial's folders, without its report; return the seconds."""
    command = find(step.verb)
    assert command is not None
    began = time.monotonic()
    try:
        with redirect_stdout(io.StringIO()):
            code = call(command, _here(moved(step, places, command)).words(), obj=trial)
    except (ShardmillError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise ConfigError(f"the trial of `{step.title}` failed: {message}") from error
    if code:
        raise ConfigError(f"the trial of `{step.title}` ended with code {code}")
    return time.monotonic() - began


def _here(step: Step) -> Step:
    flags = {name: value for name, value in step.flags.items() if name not in HERE_ONLY}
    return replace(step, flags=flags)


def _estimate(
    step: Step,
    trial: Trial,
    scale: float,
    took: float,
    out: Path,
    prices: Mapping[str, float],
) -> Estimate:
    if trial.tried:
        return _estimate_units(step, trial.tried[-1], scale, prices)
    # A plain function over a folder: one process, linear in its input.
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


def _estimate_units(
    step: Step, tried: Tried, scale: float, prices: Mapping[str, float]
) -> Estimate:
    whole = scale / max(tried.share, 1e-12)
    num_samples = tried.manifest.num_in * whole
    whole *= min(1.0, step.flags.get("limit", num_samples) / max(num_samples, 1e-12))
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
