"""Window subset-sum over a histogram: a shuffled stream with the same mix of lengths as the data.

A million samples need not all pass through the window. Most are taken m at a time: one length in
the stream stands for m samples, and the pack it lands in is made m times. What does not divide by
m follows singly, with enough of the ordinary mix kept back beside it that it packs as well. The
last window is packed in several roughly decreasing orders, of which the best is kept.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

from shardmill.pack.bound import lower_bound
from shardmill.pack.engine import Engine
from shardmill.pack.patterns import Patterns, join_patterns, single_runs
from shardmill.pack.permute import mix, mix_array, shuffled

BLIND_MEANS = 4
MIN_GROUP = 4
KEEP_BACK = 3
LAST_TRIES = 16
LAST_NOISE = 307  # of 1024


def fit_window(
    histogram: NDArray[np.int64],
    capacity: int,
    window: int,
    max_documents: int,
    key: int,
    engine: Engine,
) -> Patterns:
    """Return patterns for the lengths counted in `histogram`, most of them filled exactly."""
    fill = _Fill(capacity, window, max_documents, engine, _blind(histogram, capacity))
    group = group_size(histogram)
    grouped = _grouped_share(histogram, group)
    packs, waiting = fill.some(grouped, group, mix(key, 1))
    left = histogram - group * (grouped - waiting)
    singles, waiting = fill.some(left, 1, mix(key, 2))
    return join_patterns([packs, singles, fill.last(waiting, mix(key, 3))])


def group_size(histogram: NDArray[np.int64]) -> int:
    """Return m: about as many lengths then pass the window in groups as singly."""
    distinct = int(np.count_nonzero(histogram))
    group = isqrt(int(histogram.sum()) // (2 * distinct)) if distinct else 1
    return group if group >= MIN_GROUP else 1


def _grouped_share(histogram: NDArray[np.int64], group: int) -> NDArray[np.int64]:
    # On average group / 2 samples of each length do not divide; KEEP_BACK times as many others
    # stay with them, in proportion to all lengths.
    total = int(histogram.sum())
    if group == 1 or total == 0:
        return np.zeros_like(histogram)
    kept_back = min(total, KEEP_BACK * int(np.count_nonzero(histogram)) * group // 2)
    return histogram * (total - kept_back) // (total * group)


def _blind(histogram: NDArray[np.int64], capacity: int) -> int:
    total = int(histogram.sum())
    tokens = int(histogram @ np.arange(len(histogram)))
    return min(capacity, BLIND_MEANS * tokens // max(1, total))


class _Fill:
    """The window with everything that stays the same while one plan is made."""

    def __init__(
        self, capacity: int, window: int, max_documents: int, engine: Engine, blind: int
    ) -> None:
        self.capacity, self.window, self.max_documents = capacity, window, max_documents
        self.engine, self.blind = engine, blind

    def some(
        self, histogram: NDArray[np.int64], group: int, key: int
    ) -> tuple[Patterns, NDArray[np.int64]]:
        """Return packs while the window is full, each made `group` times, and what then waits."""
        filled = self.engine.fill_window(
            _stream(histogram, key),
            self.capacity,
            self.window,
            self.blind,
            self.max_documents,
            False,
        )
        waiting = np.bincount(filled.waiting, minlength=len(histogram))
        return single_runs(filled.items, filled.ends, group), waiting

    def last(self, histogram: NDArray[np.int64], key: int) -> Patterns:
        """Return the fewest packs that best fit, or several orders, make of the last samples."""
        best = self.engine.best_fit(histogram, self.capacity, self.max_documents)
        bound = lower_bound(histogram, self.capacity, self.max_documents)
        for attempt in range(LAST_TRIES):
            if best.num_packs <= bound:
                break
            stream = _roughly_decreasing(histogram, mix(key, attempt))
            filled = self.engine.fill_window(
                stream, self.capacity, len(stream), self.blind, self.max_documents, True
            )
            if len(filled.ends) < best.num_packs:
                best = single_runs(filled.items, filled.ends, 1)
        return best


def _stream(histogram: NDArray[np.int64], key: int) -> NDArray[np.int32]:
    lengths = np.repeat(np.arange(len(histogram), dtype=np.int32), histogram)
    return lengths[shuffled(len(lengths), key)] if len(lengths) else lengths


def _roughly_decreasing(histogram: NDArray[np.int64], key: int) -> NDArray[np.int32]:
    # With no more arrivals to come, the long ones must go first; each length is made shorter by up
    # to 30 % at random for the comparison, so that several orders can be tried.
    lengths = np.repeat(np.arange(len(histogram), dtype=np.int32), histogram)
    noise = mix_array(np.arange(len(lengths), dtype=np.uint64), key) % np.uint64(LAST_NOISE)
    weight = lengths.astype(np.int64) * (1024 - noise.astype(np.int64))
    return lengths[np.argsort(-weight, kind="stable")]
