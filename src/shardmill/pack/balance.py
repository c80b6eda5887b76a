"""Packs of like cost beside each other: every aligned run of 2, 4, 8 ... packs is alike.

The packs are split in two at a power of two, on whichever of visual and attention cost spreads
more among them, and each half again. Ranks that take neighbouring packs therefore finish together,
whatever their number.

What does not fill a whole block (see `order.segments`) is taken out first, evenly over all costs,
and comes last, so that blocks can be shuffled without moving the borders of others.

All comparisons are between integers, so that the order is the same on every machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.pack.loops import PLAIN, Engine, Packs
from shardmill.pack.order import segments, shuffled

Costs = NDArray[np.int64]


def balance(
    visual: Costs, attention: Costs, *, block: int, key: int, engine: Engine = PLAIN
) -> Packs:
    """Return the packs so that like stands beside like inside each segment of the order."""
    # Equal costs stand in random order, or packs of equal cost would stay in the order of making.
    mixed = shuffled(len(visual), key).astype(np.uint32)
    by_visual = mixed[np.argsort(visual[mixed], kind="stable")]
    by_attention = mixed[np.argsort(attention[mixed], kind="stable")]
    parts = []
    for _, stop, _ in segments(len(mixed), block):
        later = _fair_share(by_visual, len(mixed) - stop, len(mixed))
        in_first, in_second = later[by_visual], later[by_attention]
        parts.append(
            _split(by_visual[~in_first], by_attention[~in_second], visual, attention, engine)
        )
        by_visual, by_attention = by_visual[in_first], by_attention[in_second]
    return np.concatenate(parts) if parts else mixed


def _fair_share(by_visual: Packs, num_taken: int, num_packs: int) -> NDArray[np.bool_]:
    # Every so many-th of the sorted packs: a fair sample of all costs.
    taken = np.zeros(num_packs, np.bool_)
    if num_taken:
        taken[by_visual[np.arange(num_taken) * len(by_visual) // num_taken]] = True
    return taken


def _split(
    by_visual: Packs, by_attention: Packs, visual: Costs, attention: Costs, engine: Engine
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
                engine.halve(first, second, on_attention, size // 2, is_left)
        size //= 2
    return by_visual


def _spread(run: Packs, cost: Costs) -> NDArray[np.float64]:
    # How far the dearest lies above the middle, and how wide the inner three quarters are.
    width = run.shape[1]
    low, middle, high, highest = (
        cost[run[:, place]] for place in (width // 8, width // 2, width - 1 - width // 8, -1)
    )
    return np.asarray((highest - middle + high - low) / np.maximum(1, middle))
