"""How the places of a row are shared among the ranks of a context or sequence parallel group.

    split           a row, or each document, is cut into     rank r takes
    ulysses, ring   the row into n parts                     part r
    zigzag          the row into 2n parts                    parts r and 2n - 1 - r
    ring-thd        each document into n parts               part r of each
    zigzag-thd      each document into 2n parts              parts r and 2n - 1 - r of each

A causal place costs as much as there is before it, so a part from either end makes ranks alike.
With documents of 4 and 8 places (`|`) and two ranks:

    places       0 1 2 3 | 4 5 6 7 8 9 10 11
    ring         0 0 0 0   0 0 1 1 1 1 1  1
    zigzag       0 0 0 1   1 1 1 1 1 0 0  0
    ring-thd     0 0 1 1   0 0 0 0 1 1 1  1
    zigzag-thd   0 1 1 0   0 0 1 1 1 1 0  0

zigzag is the order of Megatron-core for whole rows and of torch's context parallel, zigzag-thd that
of Transformer Engine and of Megatron-core for packed rows, ring-thd and zigzag-thd those of
ring-flash-attn for packed rows. All parts of one rank have one length, so what is cut must be a
multiple of n or 2n places: rows are padded to that, documents by the alignment of their plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError

# Whether each document is cut, and whether a rank takes a part from either end.
SPLITS = {
    "ulysses": (False, False),
    "ring": (False, False),
    "zigzag": (False, True),
    "ring-thd": (True, False),
    "zigzag-thd": (True, True),
}
# Those whose parts, rank after rank, are the row.
IN_ORDER = [name for name, cut in SPLITS.items() if not any(cut)]


@dataclass(frozen=True, slots=True)
class ContextSplit:
    """The places that one of `world` ranks takes of each row; `kind` is a split of the module.

    `rank` and `world` are those inside of the group that shares a row. All its ranks read the same
    packs, so they give the loader the same data-parallel `rank` and `world`.

        split = sm.ContextSplit("zigzag-thd", rank=mesh["cp"].get_local_rank(), world=4)
        loader = sm.loader(plan, tokens, collate=sm.Collate("megatron", context=split),
                           rank=mesh["dp"].get_local_rank(), world=mesh["dp"].size())
    """

    kind: str
    rank: int
    world: int

    def __post_init__(self) -> None:
        if self.kind not in SPLITS:
            known = ", ".join(SPLITS)
            raise ConfigError(f"unknown context split {self.kind!r}: use one of {known}")
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank {self.rank} of {self.world} ranks that share a row: no such")

    @property
    def multiple(self) -> int:
        """How many places a row, or a document, must be a multiple of."""
        return self.world * (1 + SPLITS[self.kind][1])

    def places(self, padded: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of this rank, given how many each document of the row takes."""
        by_document, from_both_ends = SPLITS[self.kind]
        lengths = padded[padded > 0] if by_document else padded.sum(keepdims=True)
        uneven = lengths[lengths % self.multiple > 0]
        if len(uneven):
            raise ConfigError(
                f"{self.kind} cuts each document into {self.multiple} parts, but one takes "
                f"{uneven[0]} places: plan with --alignment {self.multiple}"
            )
        parts = [self.rank, self.multiple - 1 - self.rank] if from_both_ends else [self.rank]
        sizes = np.repeat(lengths // self.multiple, len(parts))
        starts = np.repeat(np.cumsum(lengths) - lengths, len(parts))
        starts += np.tile(parts, len(lengths)) * sizes
        # Parts of 2 at 4 and of 2 at 10: 4, 5, 10, 11.
        firsts = np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
        return np.asarray(np.arange(sizes.sum()) + firsts)
