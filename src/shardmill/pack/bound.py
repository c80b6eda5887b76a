"""How few packs can there be? Lower bounds from the histogram alone.

Three bounds, of which the largest holds: all tokens over the capacity; Martello and Toth's L2,
which knows that two samples above half a pack never share one; and dual feasible functions, which
know that no pack holds more than four samples above a fifth of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NUM_DUAL_FUNCTIONS = 32


def lower_bound(
    histogram: NDArray[np.int64], capacity: int, max_documents: int | None = None
) -> int:
    """Return a number of packs below which no plan exists; `histogram[l]` counts the length l."""
    lengths = np.flatnonzero(histogram)
    if not lengths.size:
        return 0
    counts = histogram[lengths]
    bounds = [
        _ceil(int(lengths @ counts), capacity),
        _two_sided(histogram, capacity),
        _dual(lengths, counts, capacity),
    ]
    if max_documents is not None:
        bounds.append(_ceil(int(counts.sum()), max_documents))
    return max(bounds)


def _two_sided(histogram: NDArray[np.int64], capacity: int) -> int:
    # For every k up to half a pack: lengths above capacity - k stand alone, lengths above half a
    # pack stand in a pack each and leave room, and what lies in k..half must fit into that room.
    lengths = np.arange(len(histogram))
    count = np.concatenate([[0], np.cumsum(histogram)])
    weight = np.concatenate([[0], np.cumsum(histogram * lengths)])
    half = capacity // 2
    small = np.arange(half + 1)
    alone = count[capacity + 1] - count[capacity - small + 1]
    large = count[capacity - small + 1] - count[half + 1]
    room = large * capacity - (weight[capacity - small + 1] - weight[half + 1])
    excess = np.maximum(0, weight[half + 1] - weight[small] - room)
    return int((alone + large - (-excess // capacity)).max())


def _dual(lengths: NDArray[np.int64], counts: NDArray[np.int64], capacity: int) -> int:
    # u(x) = x when (k + 1) x is a whole number of packs, else floor((k + 1) x) / k, for x as a
    # share of the capacity: no pack holds lengths whose u sums to more than 1.
    best = 0
    for k in range(1, NUM_DUAL_FUNCTIONS + 1):
        scaled = lengths * (k + 1)
        value = np.where(scaled % capacity == 0, lengths * k, scaled // capacity * capacity)
        best = max(best, _ceil(int(value @ counts), k * capacity))
    return best


def _ceil(amount: int, size: int) -> int:
    return -(-amount // size)
