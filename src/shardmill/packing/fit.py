"""Packers: which lengths share a pack. They work on the histogram of lengths, never on samples.

    histogram   best-fit decreasing: a millisecond, whatever the number of samples
    window      subset-sum over a shuffled stream: packs filled to the last token, all alike
    auto        whichever needs the fewest packs; the window wins a tie, because its packs are alike
                from the first to the last

`lower_bound` says how few packs there can be, and so when to stop trying.

The window does not see all of a million samples. Most are taken m at a time: one length in the
stream stands for m samples, and the pack it lands in is made m times. What does not divide by m
follows singly, with enough of the ordinary mix kept back beside it that it packs as well. The last
window is packed in several roughly decreasing orders, of which the best is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.rng import mix, mix_array
from shardmill.packing.loops import (
    NO_LIMIT,
    Histogram,
    Loops,
    Patterns,
    join_patterns,
    single_runs,
)
from shardmill.packing.order import shuffled

TOO_LONG = "longer than a pack"  # the reason under which a sample is dropped

# While room for so many samples of mean length is left, the next is taken without a search: any
# will do, and the time of a search grows with the room.
BLIND_MEANS = 4
WINDOWS = (128, 512, 2048)
FEW_DOCUMENTS = 4  # packs of at most so many start with the second window
GOOD_ENOUGH = 20_000  # one pack above the bound in so many
HOPELESS = 1_000  # so far above best fit that no wider window is tried
MIN_GROUP = 4  # smaller groups of equal lengths do not repay what they leave over
KEEP_BACK = 3  # samples kept with each one that does not divide by the group
LAST_TRIES = 16
LAST_NOISE = 307  # of 1024, so 30 %
NUM_DUAL_FUNCTIONS = 32


@dataclass(frozen=True, slots=True)
class Room:
    """What packs must obey, and what a packer may use.

    Lengths and `capacity` are in units of the alignment. `key` seeds all random choices, `bound` is
    a number of packs below which no plan exists.
    """

    capacity: int
    max_documents: int
    bound: int
    key: int
    loops: Loops


@dataclass(frozen=True, slots=True)
class Fit:
    """What a packer found: patterns, and how many packs each method it tried needed."""

    patterns: Patterns
    method: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)


class Packer(Protocol):
    """A frozen dataclass; its fields are its settings. Which rows get which place is not its work.

    `Patterns.of` makes patterns of packs that are lists of lengths.
    """

    def fit(self, histogram: Histogram, room: Room) -> Fit:
        """Return packs in which each length l comes `histogram[l]` times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFit:
    """Best-fit decreasing over the histogram."""

    def fit(self, histogram: Histogram, room: Room) -> Fit:
        """Return the patterns of best fit."""
        found = room.loops.best_fit(histogram, room.capacity, room.max_documents)
        return Fit(found, "histogram", {"histogram": found.num_packs})


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFit:
    """Window subset-sum; `window` is the number of samples from which a pack is chosen.

    Without it, wider windows are tried until the packs are few enough.
    """

    window: int | None = None

    def __post_init__(self) -> None:
        _check_window(self.window)

    def fit(self, histogram: Histogram, room: Room) -> Fit:
        """Return the patterns of the best window."""
        return _best_window(histogram, room, self.window, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestPacks:
    """Best fit or a window, whichever needs fewer packs; `window` as in `WindowFit`."""

    window: int | None = None

    def __post_init__(self) -> None:
        _check_window(self.window)

    def fit(self, histogram: Histogram, room: Room) -> Fit:
        """Return the patterns of the better method."""
        return _best_window(histogram, room, self.window, BestFit().fit(histogram, room))


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Samples that follow each other share a pack, as they come; the next begins what is full.

    A sample that is dropped ends the pack before it. This looks at samples, not at the histogram,
    so that a plan is made by `ends` alone.
    """

    def ends(
        self, units: NDArray[np.int32], capacity: int, max_documents: int | None
    ) -> NDArray[np.int64]:
        """Return where packs end among the samples that have a length.

        5 4 9 0 2 in packs of 10 end at 2 (9), 3 (9) and 4 (2): the one of length 0 is dropped.
        """
        rows = np.flatnonzero(units)
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(units[rows], dtype=np.int64)])
        breaks = np.append(np.searchsorted(rows, np.flatnonzero(units == 0)), len(rows))
        ends: list[int] = []
        start = 0
        while start < len(rows):
            end = int(np.searchsorted(total, total[start] + capacity, "right")) - 1
            end = min(end, int(breaks[np.searchsorted(breaks, start, "right")]))
            start = min(end, start + max_documents) if max_documents else end
            ends.append(start)
        return np.array(ends, np.int64)


def _check_window(window: int | None) -> None:
    if window is not None and window < 1:
        raise ConfigError(f"window must be at least 1, got {window}")


def _best_window(histogram: Histogram, room: Room, window: int | None, best: Fit | None) -> Fit:
    counts = {} if best is None else dict(best.counts)
    best_fit = NO_LIMIT if best is None else best.patterns.num_packs
    fewest = NO_LIMIT
    for width in _widths(histogram, room.capacity, window):
        found = fit_window(histogram, width, room)
        counts[f"window {width}"] = found.num_packs
        if best is None or found.num_packs <= min(counts.values()):
            best = Fit(found, "window")
        fewest = min(fewest, found.num_packs)
        # Good enough, or so far above best fit that a wider window will not catch up.
        is_near = fewest - room.bound <= room.bound // GOOD_ENOUGH and fewest <= best_fit
        if is_near or fewest - best_fit > 4 + best_fit // HOPELESS:
            break
    assert best is not None
    return Fit(best.patterns, best.method, counts)


def _widths(histogram: Histogram, capacity: int, window: int | None) -> list[int]:
    num_samples = int(histogram.sum())
    tokens = int(histogram @ np.arange(len(histogram)))
    documents = -(-capacity * max(1, num_samples) // max(1, tokens))
    if window is not None:
        if window < min(documents, num_samples):
            raise ConfigError(
                f"a window of {window} samples holds less than one pack, which takes about "
                f"{documents}: use window >= {3 * documents}"
            )
        return [window]
    # A pack of very few documents needs a wider choice to be filled exactly.
    first = 0 if documents > FEW_DOCUMENTS else 1
    return [max(width, 3 * documents) for width in WINDOWS[first:]]


def fit_window(histogram: Histogram, window: int, room: Room) -> Patterns:
    """Return patterns for the lengths counted in `histogram`, most of them filled exactly."""
    fill = _Fill(room, window, _blind(histogram, room.capacity))
    group = group_size(histogram)
    grouped = _grouped_share(histogram, group)
    packs, waiting = fill.some(grouped, group, mix(room.key, 1))
    left = histogram - group * (grouped - waiting)
    singles, waiting = fill.some(left, 1, mix(room.key, 2))
    return join_patterns([packs, singles, fill.last(waiting, mix(room.key, 3))])


def group_size(histogram: Histogram) -> int:
    """Return m: about as many lengths then pass the window in groups as singly."""
    distinct = int(np.count_nonzero(histogram))
    group = isqrt(int(histogram.sum()) // (2 * distinct)) if distinct else 1
    return group if group >= MIN_GROUP else 1


def _grouped_share(histogram: Histogram, group: int) -> Histogram:
    # On average group / 2 samples of each length do not divide; KEEP_BACK times as many others
    # stay with them, in proportion to all lengths.
    total = int(histogram.sum())
    if group == 1 or total == 0:
        return np.zeros_like(histogram)
    kept_back = min(total, KEEP_BACK * int(np.count_nonzero(histogram)) * group // 2)
    return histogram * (total - kept_back) // (total * group)


def _blind(histogram: Histogram, capacity: int) -> int:
    # Down to so many free tokens samples are taken without a search, see `loops.choose`.
    total = int(histogram.sum())
    tokens = int(histogram @ np.arange(len(histogram)))
    return min(capacity, BLIND_MEANS * tokens // max(1, total))


@dataclass(frozen=True, slots=True)
class _Fill:
    """The window with everything that stays the same while one plan is made."""

    room: Room
    window: int
    blind: int

    def some(self, histogram: Histogram, group: int, key: int) -> tuple[Patterns, Histogram]:
        """Return packs while the window is full, each made `group` times, and what then waits."""
        lengths = np.repeat(np.arange(len(histogram), dtype=np.int32), histogram)
        stream = lengths[shuffled(len(lengths), key)] if len(lengths) else lengths
        filled = self.room.loops.fill_window(
            stream, self.room.capacity, self.window, self.blind, self.room.max_documents, False
        )
        waiting = np.bincount(filled.waiting, minlength=len(histogram))
        return single_runs(filled.items, filled.ends, group), waiting

    def last(self, histogram: Histogram, key: int) -> Patterns:
        """Return the fewest packs that best fit, or several orders, make of the last samples."""
        capacity, limit, loops = self.room.capacity, self.room.max_documents, self.room.loops
        best = loops.best_fit(histogram, capacity, limit)
        bound = lower_bound(histogram, capacity, limit)
        for attempt in range(LAST_TRIES):
            if best.num_packs <= bound:
                break
            stream = _roughly_decreasing(histogram, mix(key, attempt))
            filled = loops.fill_window(stream, capacity, len(stream), self.blind, limit, True)
            if len(filled.ends) < best.num_packs:
                best = single_runs(filled.items, filled.ends, 1)
        return best


def _roughly_decreasing(histogram: Histogram, key: int) -> NDArray[np.int32]:
    # With no more arrivals to come, the long ones must go first; each length is made shorter by up
    # to 30 % at random for the comparison, so that several orders can be tried.
    lengths = np.repeat(np.arange(len(histogram), dtype=np.int32), histogram)
    noise = mix_array(np.arange(len(lengths), dtype=np.uint64), key) % np.uint64(LAST_NOISE)
    weight = lengths.astype(np.int64) * (1024 - noise.astype(np.int64))
    return lengths[np.argsort(-weight, kind="stable")]


def lower_bound(histogram: Histogram, capacity: int, max_documents: int | None = None) -> int:
    """Return a number of packs below which no plan exists; `histogram[l]` counts the length l.

    The largest of three bounds: all tokens over the capacity; Martello and Toth's L2, which knows
    that two samples above half a pack never share one; and dual feasible functions, which know that
    no pack holds more than four samples above a fifth of it.
    """
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


def _two_sided(histogram: Histogram, capacity: int) -> int:
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


def check_patterns(patterns: Patterns, histogram: Histogram, room: Room, method: str) -> None:
    """Raise `ConfigError` unless each length is placed as often as it comes, and all packs fit."""
    runs = np.diff(patterns.run_starts)
    placed = np.zeros(len(histogram), np.int64)
    wrong = ""
    if patterns.run_length.size and int(patterns.run_length.max()) >= len(histogram):
        wrong = "a length longer than a pack"
    else:
        np.add.at(
            placed, patterns.run_length, patterns.run_count * np.repeat(patterns.repeats, runs)
        )
        if not np.array_equal(placed, histogram):
            length = int(np.flatnonzero(placed != histogram)[0])
            wrong = f"length {length} {placed[length]} times, there are {histogram[length]}"
        elif len(patterns) and int(patterns.tokens().max()) > room.capacity:
            wrong = f"{int(patterns.tokens().max())} units in a pack of {room.capacity}"
        elif len(patterns) and int(patterns.documents().max()) > room.max_documents:
            wrong = f"{int(patterns.documents().max())} documents, {room.max_documents} may be"
    if wrong:
        raise ConfigError(f"the packer {method!r} put {wrong}")
