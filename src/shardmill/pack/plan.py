"""From a length table to a pack plan: count lengths, find patterns, deal rows, order the packs.

`choose` compares the methods: best-fit decreasing over the histogram costs a millisecond and tells
how many packs it needs; the window is preferred when it needs no more, because its packs are alike
from the first to the last, and it needs fewer wherever lengths are narrow. The bound says when to
stop trying.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.lengths import LengthTable
from shardmill.model.plan import PackPlan, PackSpec
from shardmill.pack.balance import balance
from shardmill.pack.bound import lower_bound
from shardmill.pack.cost import sum_by_pack
from shardmill.pack.emit import block_order
from shardmill.pack.engine import NO_LIMIT, Engine, EngineName, load_engine
from shardmill.pack.mixture import fit_window
from shardmill.pack.overlong import Usable, usable_lengths
from shardmill.pack.patterns import Patterns
from shardmill.pack.permute import mix, shuffled

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
