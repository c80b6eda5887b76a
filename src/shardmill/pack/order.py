"""Which pack comes when: position -> pack, from the plan's balanced order, the seed and the epoch.

Blocks of neighbours in the balanced order stay together, so that the ranks of a step carry like
cost; the blocks change places from epoch to epoch. They are not thrown about blindly: of two blocks
that stand beside each other one comes in the first half of the epoch and one in the second, by the
toss of a coin, and so on inside the halves. Hence each quarter, eighth ... of an epoch costs about
the same. Inside a block, positions are exchanged so that aligned runs stay aligned runs.

Nothing here knows the number of ranks or workers: a step takes the next `world x micro_batch`
positions, and the state of a loader is (seed, epoch, position).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardmill.model.plan import PackPlan
from shardmill.pack.permute import mix, mix_array

MIN_BLOCKS = 16
MIN_LAST_BLOCKS = 4


def segments(num_packs: int, max_block: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, block): positions that are made of whole blocks of 2^k packs.

    Nearly all positions belong to the first; those that do not fill a block of it follow, in
    smaller blocks, at the end.
    """
    start, min_blocks = 0, MIN_BLOCKS
    while start < num_packs:
        block = max_block
        while block > 1 and num_packs - start < block * min_blocks:
            block //= 2
        stop = num_packs - (num_packs - start) % block
        yield start, stop, block
        start, min_blocks = stop, MIN_LAST_BLOCKS


class EpochOrder:
    """The order of one epoch; memory is one number a block."""

    def __init__(self, plan: PackPlan, *, seed: int, epoch: int) -> None:
        self._balanced, self._key = plan.balanced, mix(seed, epoch)
        self._segments = list(segments(len(plan), plan.spec.block))
        self._starts = np.array([start for start, _, _ in self._segments], np.int64)
        self._blocks = [
            spread_blocks((stop - start) // block, mix(self._key, start))
            for start, stop, block in self._segments
        ]

    def __len__(self) -> int:
        return len(self._balanced)

    def packs(self, positions: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the pack at each position of the epoch."""
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self):
            raise IndexError(f"an epoch has the positions 0..{len(self) - 1}")
        found = np.empty(len(positions), np.uint32)
        of = np.searchsorted(self._starts, positions, side="right") - 1
        for number, (start, _, block) in enumerate(self._segments):
            here = np.flatnonzero(of == number)
            nth, place = np.divmod(positions[here] - start, block)
            blocks = self._blocks[number][nth]
            flips = mix_array(blocks.astype(np.uint64), mix(self._key, start, 1))
            place ^= (flips & np.uint64(block - 1)).astype(np.int64)
            found[here] = self._balanced[start + blocks * block + place]
        return found

    def all_packs(self) -> NDArray[np.uint32]:
        """Return the packs of the whole epoch."""
        return self.packs(np.arange(len(self)))


def spread_blocks(num_blocks: int, key: int) -> NDArray[np.int64]:
    """Return the blocks in an order in which any part of the epoch holds its share of neighbours.

    With blocks 0..7: of 0 and 1 one goes into the first half, of 2 and 3 one, and so on; then
    likewise for the quarters of each half, and for single places.
    """
    place = np.arange(num_blocks, dtype=np.uint64)
    path = np.zeros(num_blocks, np.uint64)
    one = np.uint64(1)
    for level in range(max(0, num_blocks - 1).bit_length()):
        coin = mix_array(path << np.uint64(32) | place >> np.uint64(2), mix(key, level)) & one
        coin ^= place >> one & one
        path = path << one | (place & one ^ coin)
        place >>= one
    return np.argsort(path, kind="stable")
