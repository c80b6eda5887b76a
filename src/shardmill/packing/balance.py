"""Balancers: the order of packs in which neighbours cost alike, so that ranks finish together.

`Halving` splits the packs in two at a power of two, on whichever of visual and attention cost
spreads more among them, and each half again: every aligned run of 2, 4, 8 ... packs is alike, so
one order fits any number of ranks. What does not fill a whole block (see `order.segments`) is taken
out first, evenly over all costs, and comes last, so that blocks can be shuffled without moving the
borders of others. All comparisons are between integers, so that the order is the same on every
machine.

`Shuffled` does not balance: for data whose packs cost alike anyway, or to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.packing.loops import Loops, Packs
from shardmill.packing.order import segments, shuffled

Costs = NDArray[np.int64]


class Balancer(Protocol):
    """A frozen dataclass; its fields are its settings."""

    def order(
        self, visual: Costs, attention: Costs, *, block: int, key: int, loops: Loops
    ) -> Packs:
        """Return all packs, 0 to n - 1, in the order in which neighbours cost alike.

        `visual` and `attention` are the visual tokens and the sum of squared lengths of each pack.
        Epochs shuffle whole blocks of at most `block` packs; `key` seeds random choices.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """Packs in random order."""

    def order(
        self, visual: Costs, attention: Costs, *, block: int, key: int, loops: Loops
    ) -> Packs:
        """Return the packs of this key."""
        return shuffled(len(visual), key).astype(np.uint32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """Recursive halving on the cost that spreads more."""

    def order(
        self, visual: Costs, attention: Costs, *, block: int, key: int, loops: Loops
    ) -> Packs:
        """Return the packs so that like stands beside like inside each segment of the order."""
        # Equal costs stand in random order, or such packs would stay in the order of making.
        mixed = shuffled(len(visual), key).astype(np.uint32)
        by_visual = mixed[np.argsort(visual[mixed], kind="stable")]
        by_attention = mixed[np.argsort(attention[mixed], kind="stable")]
        parts = []
        for _, stop, _ in segments(len(mixed), block):
            later = _fair_share(by_visual, len(mixed) - stop, len(mixed))
            in_first, in_second = later[by_visual], later[by_attention]
            first, second = by_visual[~in_first], by_attention[~in_second]
            parts.append(_split(first, second, visual, attention, loops))
            by_visual, by_attention = by_visual[in_first], by_attention[in_second]
        return np.concatenate(parts) if parts else mixed


def _fair_share(by_visual: Packs, num_taken: int, num_packs: int) -> NDArray[np.bool_]:
    # Every so many-th of the sorted packs: a fair sample of all costs.
    taken = np.zeros(num_packs, np.bool_)
    if num_taken:
        taken[by_visual[np.arange(num_taken) * len(by_visual) // num_taken]] = True
    return taken


def _split(
    by_visual: Packs, by_attention: Packs, visual: Costs, attention: Costs, loops: Loops
) -> Packs:
    # Level by level, all runs of one size at once as rows of a matrix. Each run is kept sorted by
    # both costs, so its middle and its spread are simply looked up.
    is_left = np.zeros(len(visual), np.bool_)
    size = 1 << max(0, len(by_visual) - 1).bit_length()
    while size > 2:
        whole = len(by_visual) // size * size
        for part, width in ((slice(0, whole), size), (slice(whole, None), len(by_visual) - whole)):
            if width > size // 2 and by_visual[part].size:
                first = by_visual[part].reshape(-1, width)
                second = by_attention[part].reshape(-1, width)
                on_attention = _spread(second, attention) > _spread(first, visual)
                loops.halve(first, second, on_attention, size // 2, is_left)
        size //= 2
    return by_visual


def _spread(run: Packs, cost: Costs) -> NDArray[np.float64]:
    # How far the most expensive lies above the middle, and how wide the inner three quarters are.
    width = run.shape[1]
    low, middle, high, highest = (
        cost[run[:, place]] for place in (width // 8, width // 2, width - 1 - width // 8, -1)
    )
    return np.asarray((highest - middle + high - low) / np.maximum(1, middle))
