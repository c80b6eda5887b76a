"""What a pack costs to train on: a line in its tokens, visual tokens and squares of lengths.

Costs are in FLOPs of forward and backward: 6 for each parameter and token, and for causal
attention 6 x layers x hidden for each square of a document's length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.plan import LengthTable, PackPlan

CHUNK = 1 << 16

Rows: TypeAlias = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """The price of a token, of a visual token on top of it, and of a square of a length."""

    token: float
    visual: float
    attention: float

    def __post_init__(self) -> None:
        for name in ("token", "visual", "attention"):
            price = getattr(self, name)
            if not isfinite(price) or price < 0:
                raise ConfigError(f"the price of {name} must be a finite number >= 0, got {price}")

    def of(self, costs: PackCosts) -> NDArray[np.float64]:
        """Return the price of each pack."""
        return np.asarray(
            self.token * costs.tokens
            + self.visual * costs.visual
            + self.attention * costs.attention
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers of a model from which its prices follow.

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

    def prices(self) -> CostModel:
        """Return 6 FLOPs a parameter and token, and causal attention."""
        text = self.layers * (4 * self.hidden**2 + 3 * self.hidden * self.feed_forward)
        vision = 12 * self.vision_layers * self.vision_hidden**2 * self.patches_per_token
        return CostModel(token=6 * text, visual=6 * vision, attention=6 * self.layers * self.hidden)


@dataclass(frozen=True, slots=True)
class PackCosts:
    """What each pack holds: its tokens, its visual tokens, its sum of squared lengths."""

    tokens: NDArray[np.int64]
    visual: NDArray[np.int64]
    attention: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tokens)


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
