"""What a pack costs to train on, and the order of packs in which neighbours cost alike.

A price is a line in the tokens of a pack, its visual tokens and the squares of its documents'
lengths: seconds that were measured, or the FLOPs of forward and backward by a model's shape, 6 for
each parameter and token, and for causal attention 6 x layers x hidden for each square.

A balancer orders packs so that the ranks of a step finish together. `Halving` splits the packs in
two at a power of two, on whichever of two costs spreads more among them, and each half again: the
visual tokens, and the squares of lengths or, where prices were measured, the time. (Packs alike in
visual tokens and in time are alike in the rest, because time is a sum of these.) Every aligned run
of 2, 4, 8 ... packs is alike then, so one order fits any number of ranks. What does not fill a
whole block (see `order.segments`) is taken out first, evenly over all costs, and comes last, so
that blocks can be shuffled without moving the borders of others. All comparisons are between
integers, so that the order is the same on every machine.

`Shuffled` does not balance: for data whose packs cost alike anyway, or to compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.plan import LengthTable, PackPlan, Prices
from shardmill.packing.loops import Loops, Packs
from shardmill.packing.order import segments, shuffled

CHUNK = 1 << 16  # packs at a time, so that memory does not grow with the table

Costs: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers of a model from which its prices follow; by default those of Qwen2.5-VL-7B.

    `vision_layers` and `vision_hidden` describe the vision tower, of which `patches_per_token`
    patches become one visual token; 0 layers mean that images are tokens from the start.
    """

    layers: int = 28
    hidden: int = 3584
    feed_forward: int = 18944
    vision_layers: int = 32
    vision_hidden: int = 1280
    patches_per_token: int = 4

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)}")

    def prices(self) -> Prices:
        """Return 6 FLOPs a parameter and token, and causal attention."""
        # Parameters of a layer: four square projections of attention and three of a gated
        # feed-forward; in the tower, four and a feed-forward of 2 x 4, so 12 squares.
        text = self.layers * (4 * self.hidden**2 + 3 * self.hidden * self.feed_forward)
        vision = 12 * self.vision_layers * self.vision_hidden**2 * self.patches_per_token
        return Prices(token=6 * text, visual=6 * vision, attention=6 * self.layers * self.hidden)


@dataclass(frozen=True, slots=True)
class PackCosts:
    """What each pack holds: its tokens, its visual tokens, its sum of squared lengths."""

    tokens: NDArray[np.int64]
    visual: NDArray[np.int64]
    attention: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tokens)

    def priced(self, prices: Prices) -> NDArray[np.float64]:
        """Return what each pack costs."""
        return prices.of(self.tokens, self.visual, self.attention)


def sum_by_pack(
    values: Callable[[Rows], NDArray[np.integer]], members: Rows, starts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the sum of `values(rows)` over the rows of each pack; memory is bounded."""
    sums = np.empty(len(starts) - 1, np.int64)
    for first in range(0, len(sums), CHUNK):
        bounds = starts[first : first + CHUNK + 1]
        rows = members[bounds[0] : bounds[-1]]
        part = np.add.reduceat(values(rows).astype(np.int64), bounds[:-1] - bounds[0])
        sums[first : first + len(part)] = part
    return sums


def pack_costs(plan: PackPlan, table: LengthTable) -> PackCosts:
    """Return what each pack of a plan holds; attention counts the padding inside documents too."""
    alignment = plan.spec.alignment

    def squares(rows: Rows) -> NDArray[np.int64]:
        aligned = -(-plan.lengths_of(rows, table).astype(np.int64) // alignment) * alignment
        return aligned**2

    return PackCosts(
        sum_by_pack(lambda rows: plan.lengths_of(rows, table), plan.members, plan.starts),
        sum_by_pack(lambda rows: table.num_visual[rows], plan.members, plan.starts),
        sum_by_pack(squares, plan.members, plan.starts),
    )


class Balancer(Protocol):
    """A frozen dataclass; its fields are its settings."""

    def order(self, visual: Costs, cost: Costs, *, block: int, key: int, loops: Loops) -> Packs:
        """Return all packs, 0 to n - 1, in the order in which neighbours cost alike.

        `visual` are the visual tokens of each pack, `cost` its sum of squared lengths or, where the
        spec has prices, its time in nanoseconds.
        Epochs shuffle whole blocks of at most `block` packs; `key` seeds random choices.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """Packs in random order."""

    def order(self, visual: Costs, cost: Costs, *, block: int, key: int, loops: Loops) -> Packs:
        """Return all packs, shuffled with this key."""
        return shuffled(len(visual), key).astype(np.uint32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """Recursive halving on the cost that spreads more."""

    def order(self, visual: Costs, cost: Costs, *, block: int, key: int, loops: Loops) -> Packs:
        """Return the packs so that like stands beside like inside each segment of the order."""
        # Equal costs stand in random order, or such packs would stay in the order of making.
        mixed = shuffled(len(visual), key).astype(np.uint32)
        by_visual = mixed[np.argsort(visual[mixed], kind="stable")]
        by_cost = mixed[np.argsort(cost[mixed], kind="stable")]
        parts = []
        for _, stop, _ in segments(len(mixed), block):
            later = _fair_share(by_visual, len(mixed) - stop, len(mixed))
            in_first, in_second = later[by_visual], later[by_cost]
            first, second = by_visual[~in_first], by_cost[~in_second]
            parts.append(_split(first, second, visual, cost, loops))
            by_visual, by_cost = by_visual[in_first], by_cost[in_second]
        return np.concatenate(parts) if parts else mixed


def _fair_share(by_visual: Packs, num_taken: int, num_packs: int) -> NDArray[np.bool_]:
    # Every so many-th of the sorted packs: a fair sample of all costs.
    taken = np.zeros(num_packs, np.bool_)
    if num_taken:
        taken[by_visual[np.arange(num_taken) * len(by_visual) // num_taken]] = True
    return taken


def _split(by_visual: Packs, by_cost: Packs, visual: Costs, cost: Costs, loops: Loops) -> Packs:
    # Level by level, all runs of one size at once as rows of a matrix. Each run is kept sorted by
    # both costs, so its middle and its spread are simply looked up. Of 11 packs, the one run of 11
    # is split at 8, then 8 at 4 (3 is less than a half yet), then 4, 4 and 3 each at 2.
    is_left = np.zeros(len(visual), np.bool_)
    size = 1 << max(0, len(by_visual) - 1).bit_length()
    while size > 2:
        whole = len(by_visual) // size * size
        for part, width in ((slice(0, whole), size), (slice(whole, None), len(by_visual) - whole)):
            if width > size // 2 and by_visual[part].size:
                first = by_visual[part].reshape(-1, width)
                second = by_cost[part].reshape(-1, width)
                on_cost = _spread(second, cost) > _spread(first, visual)
                loops.halve(first, second, on_cost, size // 2, is_left)
        size //= 2
    return by_visual


def _spread(run: Packs, cost: Costs) -> NDArray[np.float64]:
    # How far the most expensive lies above the middle, and how wide the inner three quarters are.
    width = run.shape[1]
    low, middle, high, highest = (
        cost[run[:, place]] for place in (width // 8, width // 2, width - 1 - width // 8, -1)
    )
    return np.asarray((highest - middle + high - low) / np.maximum(1, middle))
