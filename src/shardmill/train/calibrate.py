"""What packs cost on the GPU at hand, measured: prices by which `plan` orders packs and tells time.

Steps of forward and backward are run with random weights over packs of a plan, some of them with
half of their documents only, since full packs all have equally many tokens. A step's time is then a
sum: a price for each token, for each visual token, for each square of a document's length, and one
for the step itself. `fit_prices` finds them by least squares, none below zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardmill.errors import ConfigError, need
from shardmill.model.plan import Prices
from shardmill.shards.ledger import open_manifest
from shardmill.storage.path import AnyPath, as_path
from shardmill.train.attention import attention
from shardmill.train.collate import Collate
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import TrainPack
from shardmill.train.pixels.levels import OnDevice
from shardmill.train.pixels.processor import load_auto

COLUMNS = ("token", "visual", "attention", "pack")
MIN_STEPS = 8  # four prices are to be found, with something to spare
WARM_UP = 2  # the first steps load kernels and ask for memory
REPEATS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One measured step: what its pack held, and how long it took."""

    tokens: int
    visual: int
    squares: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Prices in seconds, and how well they tell the time of a step.

    `error` is the typical error as a share of a step's time (root mean square), `correlation` that
    of told and measured times.
    """

    prices: Prices
    error: float
    correlation: float
    device: str
    model: str
    attention: str
    steps: tuple[MeasuredStep, ...]


def measure_prices(
    model: AnyPath,
    plan: AnyPath,
    data: AnyPath,
    *,
    lengths: AnyPath | None,
    steps: int,
    attn_implementation: str | None,
    checkpointing: bool,
    device: str,
    on_step: Callable[[MeasuredStep], None] | None = None,
) -> Calibration:
    """Return what packs of a plan cost to train on here: see `shardmill.calibrate`."""
    if steps < MIN_STEPS:
        raise ConfigError(f"four prices need at least {MIN_STEPS} steps, got {steps}")
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no GPU is to be seen here: prices are measured where you train")
    is_samples = open_manifest(as_path(data)).content == "samples"
    packs = PackedDataset(plan, data, processor=model if is_samples else None, lengths=lengths)
    chosen = _chosen(packs, steps)
    named = attention() if attn_implementation is None else attn_implementation
    network = _network(as_path(model), named, device, checkpointing)
    levels = getattr(packs.reader, "levels", None)
    put = OnDevice(device, levels, torch.bfloat16)
    packs.in_levels = True
    collate = Collate("transformers").for_processor(getattr(packs.reader, "processor", None))
    measured = []
    for number, pack in enumerate([*chosen[:WARM_UP], *chosen]):
        batch = put(collate([pack]))
        seconds = min(_time(network, batch) for _ in range(REPEATS))
        if number >= WARM_UP:
            measured.append(_step(pack, seconds))
            if on_step is not None:
                on_step(measured[-1])
    name = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else device
    found = fit_prices(measured)
    told = np.array([_told(found, step) for step in measured])
    real = np.array([step.seconds for step in measured])
    return Calibration(
        prices=found,
        error=float(np.sqrt(np.mean((told / real - 1) ** 2))),
        correlation=float(np.corrcoef(told, real)[0, 1]),
        device=name,
        model=type(network).__name__,
        attention=named,
        steps=tuple(measured),
    )


def fit_prices(steps: Sequence[MeasuredStep]) -> Prices:
    """Return the prices, none below zero, that tell the times of steps with the least error.

    Errors count as shares of a step's time, so that short steps are told as well as long ones.
    """
    rows = np.array([[s.tokens, s.visual, s.squares, 1] for s in steps], np.float64)
    rows /= np.array([s.seconds for s in steps])[:, None]
    # The best fit with no price below zero is the plain best fit of some of the columns, the others
    # being zero; of four columns there are fifteen choices, so that all can be tried.
    best, least = np.zeros(len(COLUMNS)), float("inf")
    for size in range(1, len(COLUMNS) + 1):
        for some in combinations(range(len(COLUMNS)), size):
            prices = np.zeros(len(COLUMNS))
            # Columns of like size, or the squares would drown the rest.
            scale = np.abs(rows[:, some]).max(axis=0)
            if not scale.all():
                continue
            solved = np.linalg.lstsq(rows[:, some] / scale, np.ones(len(rows)), rcond=None)[0]
            prices[list(some)] = solved / scale
            error = float(((rows @ prices - 1) ** 2).sum())
            if prices.min() >= 0 and error < least:
                best, least = prices, error
    return Prices(**dict(zip(COLUMNS, best.tolist())))


def _told(prices: Prices, step: MeasuredStep) -> float:
    counts = (np.array([n]) for n in (step.tokens, step.visual, step.squares))
    return float(prices.of(*counts)[0])


def _chosen(packs: PackedDataset, steps: int) -> list[TrainPack]:
    """Return packs of all costs, every other one with half of its documents."""
    plan = packs.plans.first
    if not len(plan):
        raise ConfigError("the plan has no packs")
    # In the plan's order packs of like cost are neighbours, so that these are as unlike as can be.
    places = np.linspace(0, len(plan) - 1, steps).round().astype(np.int64)
    found = []
    for nth, number in enumerate(plan.balanced[places].tolist()):
        rows = plan[number]
        half = rows[: max(1, len(rows) // 2)]
        found.append(packs.pack_of(number, plan, half if nth % 2 else rows))
    return found


def _step(pack: TrainPack, seconds: float) -> MeasuredStep:
    lengths = pack.pack.layout.padded.astype(np.int64)
    visual = sum(medium.span.num_tokens for medium in pack.pack.media)
    squares = int((lengths**2).sum())
    return MeasuredStep(tokens=int(lengths.sum()), visual=visual, squares=squares, seconds=seconds)


def _network(folder: Path, attn: str, device: str, checkpointing: bool) -> Any:
    hf = need("transformers", extra="train")
    config = load_auto("AutoConfig", folder)
    kinds = [hf.AutoModelForCausalLM]
    if hasattr(config, "vision_config"):
        kinds.insert(0, hf.AutoModelForImageTextToText)
    with torch.device(device):
        settings = {"attn_implementation": attn, "dtype": torch.bfloat16}
        network = kinds[0].from_config(config, trust_remote_code=False, **settings)
    if checkpointing:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    return network.train()


def _time(network: Any, batch: dict[str, Any]) -> float:
    def wait() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    network(**batch).loss.backward()
    wait()
    seconds = time.perf_counter() - start
    network.zero_grad(set_to_none=False)
    return seconds
