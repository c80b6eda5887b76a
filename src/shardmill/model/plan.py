"""The pack plan: which samples stand together in which pack, and in which order packs are alike.

A plan is arithmetic over a length table: rows are numbers of samples, nothing is copied. It belongs
to the table whose digest it carries and is refused for any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, StaleError
from shardmill.model.lengths import LengthTable
from shardmill.model.overlong import Overlong
from shardmill.plugins import BALANCERS, PACKERS, resolve

MAX_CAPACITY = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSpec:
    """How to pack: everything that a plan depends on besides the lengths.

    Each document takes a multiple of `alignment` tokens of the `capacity` (for context parallelism
    2 x cp_size). A sample longer than a pack makes the plan fail, is dropped with a reason, or has
    text cut from its end; media are never cut. `max_packs` keeps a fair sample of the packs.
    `headroom` is the share of the capacity that is left free when the lengths are estimates; exact
    lengths need none. `method` names the packer and `balance` the balancer, with their fields:
    "auto", "window,window=512", "package.module:Class,field=value". `block` packs of like cost stay
    together in every order: a power of two, and at least the number of packs in a step. Another
    `epoch` gives the same documents other neighbours.
    """

    capacity: int
    alignment: int = 1
    overlong: Overlong = "fail"
    max_documents: int | None = None
    max_packs: int | None = None
    headroom: float = 0.05
    method: str = "auto"
    balance: str = "halving"
    block: int = 512
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= MAX_CAPACITY:
            raise ConfigError(f"capacity must be 1..{MAX_CAPACITY}, got {self.capacity}")
        if not 1 <= self.alignment <= self.capacity:
            raise ConfigError(
                f"alignment must be 1..capacity ({self.capacity}), got {self.alignment}"
            )
        for name in ("max_documents", "max_packs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        # Written so that NaN fails too.
        if not 0 <= self.headroom < 1:
            raise ConfigError(f"headroom must be at least 0 and below 1, got {self.headroom}")
        if self.block < 1 or self.block & (self.block - 1):
            raise ConfigError(f"block must be a power of two, got {self.block}")
        resolve(PACKERS, self.method.partition(",")[0])
        resolve(BALANCERS, self.balance.partition(",")[0])
        if self.overlong not in ("fail", "drop", "cut"):
            raise ConfigError(f"overlong must be fail, drop or cut, got {self.overlong!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """Packs of rows of a length table.

    Pack k holds the rows `members[starts[k] : starts[k + 1]]`. `balanced` lists the packs so that
    neighbours cost alike; `pack.order` makes epochs of it. `dropped` are rows that are in no pack,
    each with an index into `drop_reasons`. `cut_rows`, rising, take `cut_lengths` tokens instead of
    all of theirs. `method` and `why` say how the packs were found, `lower_bound` how few there
    could be at best, and `counts` how many each method needed.
    """

    spec: PackSpec
    lengths_digest: str
    num_rows: int
    members: NDArray[np.uint32]
    starts: NDArray[np.int64]
    balanced: NDArray[np.uint32]
    dropped: NDArray[np.uint32]
    drop_reason: NDArray[np.uint8]
    drop_reasons: tuple[str, ...]
    cut_rows: NDArray[np.uint32]
    cut_lengths: NDArray[np.int32]
    method: str
    why: str
    lower_bound: int
    counts: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, pack: int) -> NDArray[np.uint32]:
        """Return the rows of one pack."""
        if not 0 <= pack < len(self):
            raise IndexError(f"the plan has packs 0..{len(self) - 1}, not {pack}")
        return self.members[self.starts[pack] : self.starts[pack + 1]]

    def lengths_of(self, rows: NDArray[np.uint32], table: LengthTable) -> NDArray[np.int32]:
        """Return the planned number of tokens of each row: its length, unless it is cut."""
        lengths = table.num_tokens[rows]
        if len(self.cut_rows):
            place = np.searchsorted(self.cut_rows, rows).clip(max=len(self.cut_rows) - 1)
            lengths = np.where(self.cut_rows[place] == rows, self.cut_lengths[place], lengths)
        return lengths

    def check_table(self, table: LengthTable) -> None:
        """Raise `StaleError` unless the plan was made from this very table."""
        if table.digest != self.lengths_digest:
            raise StaleError(
                f"this plan was made from other lengths (digest {self.lengths_digest}, "
                f"{self.num_rows} samples; found {table.digest}, {len(table)} samples): plan again"
            )
