"""From a length table to a pack plan: count lengths, fit patterns, deal rows, order the packs.

A plan is a pure function of the table and the spec. `spec.method` names the packer (see `fit`) and
`spec.balance` the balancer (see `balance`): names of `plugins.PACKERS` and `plugins.BALANCERS`, or
your own "package.module:Class", with fields as in "window,window=512".

Lengths are planned in units of the alignment. With an alignment of 8, lengths 5, 8 and 9 are 1, 1
and 2 units, and a capacity of 100 is 12 units: four tokens of it can hold nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.codec import build, parse_plugin
from shardmill.model.plan import LengthTable, PackPlan, PackSpec, check_lengths
from shardmill.model.rng import mix
from shardmill.packing.balance import Balancer, sum_by_pack
from shardmill.packing.fit import (
    TOO_LONG,
    Neighbours,
    Packer,
    Room,
    check_patterns,
    lower_bound,
)
from shardmill.packing.loops import (
    NO_LIMIT,
    Loops,
    LoopsName,
    Patterns,
    load_loops,
    single_runs,
)
from shardmill.packing.order import shuffled
from shardmill.plugins import BALANCERS, PACKERS

# Rows of many are shuffled in blocks of one cache line of int32, of few one by one.
BLOCK_ROWS = 16
SHUFFLE_ROWS_SINGLY = 1 << 16
MEDIA_TOO_LONG = "media longer than a pack"
BEYOND_MAX_PACKS = "beyond max_packs"


def plan_packs(table: LengthTable, spec: PackSpec, *, loops: LoopsName = "auto") -> PackPlan:
    """Return the plan of a table; `loops` only changes the time that it takes.

    Raises `ConfigError` if the spec says to fail for a sample that is longer than a pack, or if a
    packer or balancer of your own loses, repeats or overfills anything.
    """
    chosen = load_loops(loops)
    usable = usable_lengths(table, spec)
    if spec.method == "neighbours":
        return _neighbours(table, spec, usable, chosen)
    histogram = count_lengths(usable.units, usable.capacity)
    choice = choose(histogram, usable.capacity, spec, chosen)
    blocks, block_rows = block_order(len(usable.units), mix(mix(spec.seed, spec.epoch), 1))
    rows = chosen.sort_rows(usable.units, blocks, block_rows, histogram)
    members = chosen.deal_rows(choice.patterns, rows, histogram)
    del rows  # 4 bytes a sample, which the balancing below needs as well
    return _finish(table, spec, usable, choice, members, chosen)


def _neighbours(table: LengthTable, spec: PackSpec, usable: Usable, loops: Loops) -> PackPlan:
    ends = Neighbours().ends(usable.units, usable.capacity, spec.max_documents)
    rows = np.flatnonzero(usable.units).astype(np.uint32)
    patterns = single_runs(usable.units[rows].astype(np.int32), ends, 1)
    histogram = count_lengths(usable.units, usable.capacity)
    bound = lower_bound(histogram, usable.capacity, spec.max_documents)
    counts = {spec.method: len(ends)}
    choice = Choice(patterns, spec.method, _why(spec.method, counts, bound), bound, counts)
    return _finish(table, spec, usable, choice, rows, loops)


@dataclass(frozen=True, slots=True)
class Usable:
    """Lengths to plan with, in units of the alignment; 0 for a row that is in no pack."""

    units: NDArray[np.int32]
    capacity: int
    dropped: NDArray[np.uint32]
    drop_reason: NDArray[np.uint8]
    drop_reasons: tuple[str, ...]
    cut_rows: NDArray[np.uint32]
    cut_lengths: NDArray[np.int32]


def usable_lengths(table: LengthTable, spec: PackSpec) -> Usable:
    """Return what is planned of each row; estimates leave the headroom of a pack free.

    Raises `ConfigError` if the policy is to fail and a row is too long. Media are never cut: a row
    whose media alone are too long is dropped.
    """
    # A table that was mapped from a file has not been checked yet, see `open_lengths`.
    check_lengths(table)
    tokens = spec.capacity if table.exact else int(spec.capacity * (1 - spec.headroom))
    if tokens < spec.alignment:
        raise ConfigError(
            f"capacity {spec.capacity} less a headroom of {spec.headroom:g} leaves {tokens} "
            f"tokens, less than one alignment of {spec.alignment}"
        )
    capacity = tokens // spec.alignment
    units = table.num_tokens
    if spec.alignment > 1:
        # Rounded up without a sum, which could leave 32 bits.
        units = units // spec.alignment + (units % spec.alignment > 0)
    rejected = np.flatnonzero(table.reject)
    dropped = np.flatnonzero((units > capacity) & (table.reject == 0))
    if spec.overlong == "fail" and dropped.size:
        raise _too_long(table, dropped, capacity * spec.alignment)
    cut, reason = dropped[:0], len(table.reject_reasons)
    if spec.overlong == "cut":
        fits = table.num_fixed[dropped] <= capacity * spec.alignment
        cut, dropped, reason = dropped[fits], dropped[~fits], reason + 1
    why = np.concatenate([table.reject[rejected] - 1, np.full(len(dropped), reason, np.uint8)])
    dropped = np.concatenate([rejected, dropped])
    if dropped.size or cut.size:
        units = units.copy()
        units[dropped] = 0
        units[cut] = capacity
    order = np.argsort(dropped, kind="stable")
    return Usable(
        units,
        capacity,
        dropped[order].astype(np.uint32),
        why[order].astype(np.uint8),
        (*table.reject_reasons, TOO_LONG, MEDIA_TOO_LONG),
        cut.astype(np.uint32),
        np.full(len(cut), capacity * spec.alignment, np.int32),
    )


def _too_long(table: LengthTable, rows: NDArray[np.int64], room: int) -> ConfigError:
    row = int(rows[0])
    where = f"row {row}"
    if table.shard_names:
        shard, place = table.locate(row)
        where += f" (sample {place} of shard {shard})"
    return ConfigError(
        f"{len(rows)} of {len(table)} samples are longer than the {room} tokens of a pack; the "
        f"first is {where} with {table.num_tokens[row]}. Choose a larger --capacity, or "
        "--overlong drop or cut"
    )


def count_lengths(units: NDArray[np.int32], capacity: int) -> NDArray[np.int64]:
    """Return how many rows have each length from 1 to capacity; length 0 is not counted."""
    # In pieces, because bincount turns its whole input into int64.
    histogram = np.zeros(capacity + 1, np.int64)
    for start in range(0, len(units), 1 << 20):
        histogram += np.bincount(units[start : start + (1 << 20)], minlength=capacity + 1)
    histogram[0] = 0
    return histogram


def block_order(num_rows: int, key: int) -> tuple[NDArray[np.int64], int]:
    """Return the shuffled order of the blocks of rows, and how many rows a block has.

    Rows of one length are dealt in this order. Of many rows, neighbours stay together: a block is
    one cache line of the length table.
    """
    block_rows = 1 if num_rows <= SHUFFLE_ROWS_SINGLY else BLOCK_ROWS
    return shuffled(-(-num_rows // block_rows), key), block_rows


@dataclass(frozen=True, slots=True)
class Choice:
    """The patterns that were chosen, and why."""

    patterns: Patterns
    method: str
    why: str
    lower_bound: int
    counts: Mapping[str, int]


def choose(histogram: NDArray[np.int64], capacity: int, spec: PackSpec, loops: Loops) -> Choice:
    """Return what the packer of the spec makes of the lengths."""
    bound = lower_bound(histogram, capacity, spec.max_documents)
    key = mix(spec.seed, spec.epoch, 2)
    room = Room(capacity, spec.max_documents or NO_LIMIT, bound, key, loops)
    plain = parse_plugin(spec.method)
    packer: Packer = build(PACKERS, plain, where="method", trusted=False)
    fit = packer.fit(histogram, room)
    if plain["kind"] not in PACKERS:
        check_patterns(fit.patterns, histogram, room, spec.method)
    method = fit.method or plain["kind"]
    counts = fit.counts or {method: fit.patterns.num_packs}
    return Choice(fit.patterns, method, _why(method, counts, bound), bound, counts)


def _why(method: str, counts: Mapping[str, int], bound: int) -> str:
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
    loops: Loops,
) -> PackPlan:
    patterns = choice.patterns
    documents = np.repeat(patterns.documents(), patterns.repeats)
    lengths = patterns.run_length.astype(np.int64) * spec.alignment
    tokens, squares = (
        np.repeat(patterns.sum_runs(lengths**power * patterns.run_count), patterns.repeats)
        for power in (1, 2)
    )
    dropped, reason, reasons = usable.dropped, usable.drop_reason, usable.drop_reasons
    if spec.max_packs is not None and spec.max_packs < len(documents):
        # A fair sample: any packs, not the first ones.
        kept = np.zeros(len(documents), np.bool_)
        order = shuffled(len(documents), mix(spec.seed, spec.epoch, 3))
        kept[order[: spec.max_packs]] = True
        in_kept = np.repeat(kept, documents)
        late = np.sort(members[~in_kept])
        members, documents = members[in_kept], documents[kept]
        tokens, squares = tokens[kept], squares[kept]
        dropped = np.concatenate([dropped, late])
        reason = np.concatenate([reason, np.full(len(late), len(reasons), np.uint8)])
        reasons = (*reasons, BEYOND_MAX_PACKS)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(documents)])
    visual = sum_by_pack(lambda rows: table.num_visual[rows], members, starts)
    cost = squares
    if spec.prices is not None:
        # Whole nanoseconds, so that a last bit does not decide which of two packs comes first. Less
        # what the cheapest takes: what all packs share would hide by how much they differ.
        cost = np.rint(1e9 * spec.prices.of(tokens, visual, squares)).astype(np.int64)
        cost -= cost.min(initial=np.iinfo(np.int64).max)
    return PackPlan(
        spec=spec,
        lengths_digest=table.digest,
        num_rows=len(table),
        members=members,
        starts=starts,
        balanced=_balanced(spec, visual, cost, loops),
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


def _balanced(
    spec: PackSpec, visual: NDArray[np.int64], cost: NDArray[np.int64], loops: Loops
) -> NDArray[np.uint32]:
    plain = parse_plugin(spec.balance)
    balancer: Balancer = build(BALANCERS, plain, where="balance", trusted=False)
    key = mix(spec.seed, spec.epoch, 4)
    order = np.asarray(balancer.order(visual, cost, block=spec.block, key=key, loops=loops))
    if plain["kind"] not in BALANCERS and not np.array_equal(np.sort(order), range(len(visual))):
        raise ConfigError(f"the balancer {spec.balance!r} does not list each pack once")
    return order.astype(np.uint32, copy=False)
