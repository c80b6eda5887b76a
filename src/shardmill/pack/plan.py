"""From a length table to a pack plan: count lengths, find patterns, deal rows, order the packs.

`choose` compares the methods: best-fit decreasing over the histogram costs a millisecond and tells
how many packs it needs; the window is preferred when it needs no more, because its packs are alike
from the first to the last, and it needs fewer wherever lengths are narrow. The bound says when to
stop trying.

How few packs can there be? Lower bounds from the histogram alone.

Three bounds, of which the largest holds: all tokens over the capacity; Martello and Toth's L2,
which knows that two samples above half a pack never share one; and dual feasible functions, which
know that no pack holds more than four samples above a fifth of it.

Window subset-sum over a histogram: a shuffled stream with the same mix of lengths as the data.

A million samples need not all pass through the window. Most are taken m at a time: one length in
the stream stands for m samples, and the pack it lands in is made m times. What does not divide by
m follows singly, with enough of the ordinary mix kept back beside it that it packs as well. The
last window is packed in several roughly decreasing orders, of which the best is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.lengths import LengthTable
from shardmill.model.plan import PackPlan, PackSpec
from shardmill.model.rng import mix, mix_array
from shardmill.pack.balance import balance
from shardmill.pack.cost import sum_by_pack
from shardmill.pack.loops import (
    NO_LIMIT,
    Engine,
    EngineName,
    Patterns,
    block_order,
    join_patterns,
    load_engine,
    single_runs,
)
from shardmill.pack.order import shuffled
from shardmill.pack.overlong import Usable, usable_lengths

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


WINDOWS = (128, 512, 2048)
FEW_DOCUMENTS = 4
GOOD_ENOUGH = 20_000  # one pack above the bound in so many
HOPELESS = 1_000
SMALL_TABLE = 20_000  # planned in less time than numba takes to load
BEYOND_MAX_PACKS = "beyond max_packs"


@dataclass(frozen=True, slots=True)
class Choice:
    """The patterns that were chosen, and why."""

    patterns: Patterns
    method: str
    why: str
    lower_bound: int
    counts: dict[str, int]


def plan_packs(table: LengthTable, spec: PackSpec, *, engine: EngineName = "auto") -> PackPlan:
    """Return the plan, a pure function of the table and the spec; the engine only changes time."""
    loops = load_engine("plain" if engine == "auto" and len(table) < SMALL_TABLE else engine)
    usable = usable_lengths(table, spec)
    histogram = count_lengths(usable.units, usable.capacity)
    choice = choose(histogram, usable.capacity, spec, loops)
    key = mix(spec.seed, spec.epoch)
    blocks, block_rows = block_order(len(usable.units), mix(key, 1))
    rows = loops.sort_rows(usable.units, blocks, block_rows, histogram)
    members = loops.deal_rows(choice.patterns, rows, histogram)
    del rows
    return _finish(table, spec, usable, choice, members, loops)


def count_lengths(units: NDArray[np.int32], capacity: int) -> NDArray[np.int64]:
    """Return how many rows have each length from 1 to capacity; length 0 is not counted."""
    histogram = np.zeros(capacity + 1, np.int64)
    for start in range(0, len(units), 1 << 20):
        histogram += np.bincount(units[start : start + (1 << 20)], minlength=capacity + 1)
    histogram[0] = 0
    return histogram


def choose(histogram: NDArray[np.int64], capacity: int, spec: PackSpec, engine: Engine) -> Choice:
    """Return the method with the fewest packs; the window wins a tie."""
    limit = spec.max_documents or NO_LIMIT
    bound = lower_bound(histogram, capacity, spec.max_documents)
    counts: dict[str, int] = {}
    best = None
    if spec.method != "window":
        best = engine.best_fit(histogram, capacity, limit)
        counts["histogram"] = best.num_packs
    if spec.method != "histogram":
        for window in _windows(histogram, capacity, spec):
            found = fit_window(
                histogram, capacity, window, limit, mix(spec.seed, spec.epoch, 2), engine
            )
            counts[f"window {window}"] = found.num_packs
            if best is None or found.num_packs <= min(counts.values()):
                best = found
            if _settled(counts, bound):
                break
    assert best is not None
    method = (
        "histogram" if best.num_packs < min(_of_windows(counts), default=NO_LIMIT) else "window"
    )
    return Choice(best, method, _why(method, counts, bound), bound, counts)


def _windows(histogram: NDArray[np.int64], capacity: int, spec: PackSpec) -> list[int]:
    num_samples = int(histogram.sum())
    tokens = int(histogram @ np.arange(len(histogram)))
    documents = -(-capacity * max(1, num_samples) // max(1, tokens))
    if spec.window is not None:
        if spec.window < min(documents, num_samples):
            raise ConfigError(
                f"a window of {spec.window} samples holds less than one pack, which takes about "
                f"{documents}: use window >= {3 * documents}"
            )
        return [spec.window]
    # A pack of very few documents needs a wider choice to be filled exactly.
    first = 0 if documents > FEW_DOCUMENTS else 1
    return [max(window, 3 * documents) for window in WINDOWS[first:]]


def _settled(counts: dict[str, int], bound: int) -> bool:
    # Good enough, or so far above best fit that a wider window will not catch up.
    windows = min(_of_windows(counts))
    best_fit = counts.get("histogram", NO_LIMIT)
    near = windows - bound <= bound // GOOD_ENOUGH and windows <= best_fit
    return near or windows - best_fit > 4 + best_fit // HOPELESS


def _of_windows(counts: dict[str, int]) -> list[int]:
    return [count for name, count in counts.items() if name.startswith("window")]


def _why(method: str, counts: dict[str, int], bound: int) -> str:
    found = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    if len(counts) == 1:
        reason = "asked for"
    elif list(counts.values()).count(min(counts.values())) == 1:
        reason = "the fewest packs"
    else:
        reason = "no other needs fewer packs, and each pack has the mix of all the data"
    return f"{method}: {reason} ({found}; the lower bound is {bound:,})"


def _finish(
    table: LengthTable,
    spec: PackSpec,
    usable: Usable,
    choice: Choice,
    members: NDArray[np.uint32],
    engine: Engine,
) -> PackPlan:
    patterns = choice.patterns
    documents = np.repeat(patterns.documents(), patterns.repeats)
    lengths = patterns.run_length.astype(np.int64) * spec.alignment
    attention = np.repeat(patterns.sum_runs(lengths**2 * patterns.run_count), patterns.repeats)
    dropped, reason, reasons = usable.dropped, usable.drop_reason, usable.drop_reasons
    if spec.max_packs is not None and spec.max_packs < len(documents):
        kept = _fair_sample(len(documents), spec)
        in_kept = np.repeat(kept, documents)
        late = np.sort(members[~in_kept])
        members, documents, attention = members[in_kept], documents[kept], attention[kept]
        dropped = np.concatenate([dropped, late])
        reason = np.concatenate([reason, np.full(len(late), len(reasons), np.uint8)])
        reasons = (*reasons, BEYOND_MAX_PACKS)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(documents)])
    visual = sum_by_pack(lambda rows: table.num_visual[rows], members, starts)
    balanced = balance(
        visual, attention, block=spec.block, key=mix(spec.seed, spec.epoch, 4), engine=engine
    )
    return PackPlan(
        spec=spec,
        lengths_digest=table.digest,
        num_rows=len(table),
        members=members,
        starts=starts,
        balanced=balanced,
        dropped=dropped,
        drop_reason=reason,
        drop_reasons=reasons,
        cut_rows=usable.cut_rows,
        cut_lengths=usable.cut_lengths,
        method=choice.method,
        why=choice.why,
        lower_bound=choice.lower_bound,
        counts=choice.counts,
    )


def _fair_sample(num_packs: int, spec: PackSpec) -> NDArray[np.bool_]:
    kept = np.zeros(num_packs, np.bool_)
    kept[shuffled(num_packs, mix(spec.seed, spec.epoch, 3))[: spec.max_packs]] = True
    return kept
