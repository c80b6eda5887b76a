"""From positions to numbers, epoch by epoch: packs (see `serve.plans`), or shuffled samples.

The plans behind the epochs of a loader: one for all, or one for each (see `serve.afresh`).

A pack has a number that says where it is found: with one plan, its place there; with a plan an
epoch, also the epoch. Numbers travel to workers; what they stand for is mapped there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.manifest import ShardEntry
from shardmill.model.plan import PackPlan
from shardmill.model.rng import mix
from shardmill.pack.order import EpochOrder, permute
from shardmill.shards.plans import open_plan
from shardmill.storage.path import as_path
from shardmill.train.state import NO_PACK, EqualEpochs, Sizes, Taken, plan_digest

STRETCH = 8192


class Order(Protocol):
    """One epoch: position -> number, each number once."""

    def packs(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Return the number at each position."""


class ShuffledSamples:
    """Samples in an order of (seed, epoch), never listed, so that it takes no memory.

    Samples are shuffled inside windows of so many samples, and the windows among each other: a
    window of a few shards keeps the reading of remote or cold data together. None shuffles all.
    """

    def __init__(self, num_samples: int, *, seed: int, epoch: int, window: int | None) -> None:
        if window is not None and window < 1:
            raise ConfigError(f"window must be at least 1 sample, got {window}")
        self._size, self._key = num_samples, mix(seed, epoch)
        self._window = num_samples if window is None else min(window, num_samples)

    def packs(self, positions: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the sample at each position."""
        window = self._window
        whole = self._size // window
        numbers = np.empty(len(positions), np.int64)
        # The last window may be short; it keeps its place at the end.
        nth, inside = np.divmod(positions, window)
        for number in np.unique(nth).tolist():
            mine = nth == number
            last = number == whole
            block = number if last else int(permute(np.array([number]), whole, self._key)[0])
            size = self._size - whole * window if last else window
            numbers[mine] = block * window + permute(inside[mine], size, mix(self._key, block, 1))
        return numbers.astype(np.uint32)


class Numbers:
    """The numbers that a rank takes, looked up in stretches of the order.

    Steps take positions one after another, and arithmetic on a few numbers at a time costs mostly
    the calls; so the order is worked out for 8192 positions at once and the last few are kept.
    """

    def __init__(self, sizes: Sizes, order_of: Callable[[int], Order]) -> None:
        self._sizes = sizes
        self._order_of = lru_cache(maxsize=2)(order_of)
        self._stretch = lru_cache(maxsize=4)(self._work_out)

    def of(self, taken: Taken) -> list[int]:
        """Return the number at each position taken, -1 where a step is padded."""
        stretch = self._stretch
        return [
            NO_PACK if at == NO_PACK else stretch(epoch, at // STRETCH)[at % STRETCH]
            for epoch, at in zip(taken.epochs, taken.positions)
        ]

    def _work_out(self, epoch: int, stretch: int) -> list[int]:
        first = stretch * STRETCH
        positions = np.arange(first, min(first + STRETCH, self._sizes.size(epoch)), dtype=np.int64)
        found: list[int] = self._order_of(epoch).packs(positions).tolist()
        return found


def sample_numbers(num_samples: int, seed: int, window: int | None = None) -> Numbers:
    """Return shuffled samples."""
    return Numbers(
        EqualEpochs(num_samples),
        lambda epoch: ShuffledSamples(num_samples, seed=seed, epoch=epoch, window=window),
    )


class Plans(Protocol):
    """The plans of all epochs; they pickle, and are mapped again by the process that gets them."""

    @property
    def first(self) -> PackPlan:
        """The plan of epoch 0, whose spec and lengths are those of all."""

    def size(self, epoch: int) -> int:
        """Return the packs of an epoch."""

    def order(self, seed: int, epoch: int) -> Order:
        """Return the numbers of the packs of an epoch in their order."""

    def find(self, number: int) -> tuple[PackPlan, int]:
        """Return the plan that holds a pack, and its place there."""

    def digest(self, shards: tuple[ShardEntry, ...]) -> str:
        """Return the identity of the plans and of the files that they pack."""


class OnePlan:
    """The same packs in every epoch, in another order."""

    def __init__(self, source: PackPlan | Path) -> None:
        self._source = source
        self.first = source if isinstance(source, PackPlan) else open_plan(source)

    def __reduce__(self) -> tuple[Any, ...]:
        return OnePlan, (self._source,)

    def size(self, epoch: int) -> int:
        """Return the packs of the plan."""
        return len(self.first)

    def order(self, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return EpochOrder(self.first, seed=seed, epoch=epoch)

    def find(self, number: int) -> tuple[PackPlan, int]:
        """Return the plan and the number itself."""
        return self.first, number

    def digest(self, shards: tuple[ShardEntry, ...]) -> str:
        """Return the identity of the plan and its files."""
        return plan_digest(self.first, shards)


def plans_of(plan: Plans | PackPlan | Path | str) -> Plans:
    """Return the plans of a loader; a plan or the file of one serves all epochs."""
    if isinstance(plan, PackPlan):
        return OnePlan(plan)
    return OnePlan(as_path(plan)) if isinstance(plan, str | Path) else plan


def pack_numbers(plans: Plans, seed: int) -> Numbers:
    """Return the packs of all epochs in the order of this seed."""
    return Numbers(plans, lambda epoch: plans.order(seed, epoch))
