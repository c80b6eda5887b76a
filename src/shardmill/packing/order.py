"""Which pack comes when: position -> pack, from the plan's balanced order, the seed and the epoch.

Blocks of neighbours in the balanced order stay together, so that the ranks of a step carry like
cost; the blocks change places from epoch to epoch. Of two blocks that stand beside each other, one
comes in the first half of the epoch and one in the second, by the toss of a coin, and so on inside
the halves: each quarter, eighth ... of an epoch costs about the same. Inside a block, positions are
exchanged so that aligned runs stay aligned runs.

Nothing here knows the number of ranks or workers: a step takes the next `world x batch_size`
positions, and the state of a loader is (seed, epoch, position).

`permute` shuffles without a shuffled list, the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardmill.model.plan import PackPlan
from shardmill.model.rng import mix, mix_array

# Fewer rounds of a Feistel network leave a pattern; with four it passes for a random order.
ROUNDS = 4
CHUNK = 1 << 14  # small enough for the cache: five times as fast as all at once


def permute(positions: NDArray[np.integer], size: int, key: int) -> NDArray[np.int64]:
    """Return where the shuffle of 0..size-1 with this key sends each position.

    A position is cut into two halves of bits that stir each other four times (a Feistel network),
    which is a bijection of the next power of two; a value outside 0..size-1 is stirred again until
    it falls inside. Only integers are used, so numpy's version and the processor do not matter.
    """
    bits = max(2, (size - 1).bit_length())
    values = _stir(positions.astype(np.uint64), bits, key)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        values[outside] = _stir(values[outside], bits, key)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def shuffled(size: int, key: int) -> NDArray[np.int64]:
    """Return all of 0..size-1 in the order of this key."""
    order = np.empty(size, np.int64)
    for start in range(0, size, CHUNK):
        stop = min(start + CHUNK, size)
        order[start:stop] = permute(np.arange(start, stop), size, key)
    return order


def _stir(values: NDArray[np.uint64], bits: int, key: int) -> NDArray[np.uint64]:
    low_bits = bits // 2
    for turn in range(ROUNDS):
        # The halves swap places, and with them their widths when `bits` is odd.
        high_bits = bits - low_bits
        high, low = values >> np.uint64(low_bits), values & np.uint64((1 << low_bits) - 1)
        stirred = mix_array(low, mix(key, turn)) & np.uint64((1 << high_bits) - 1)
        values = low << np.uint64(high_bits) | (high ^ stirred)
        low_bits = high_bits
    return values


# An epoch of fewer blocks would hardly be shuffled, so blocks get smaller; the few packs that are
# left over at the end may be shuffled less well.
MIN_BLOCKS = 16
MIN_LAST_BLOCKS = 4


def segments(num_packs: int, max_block: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, block): positions that are made of whole blocks of 2^k packs.

    Nearly all positions belong to the first; those that do not fill a block of it follow, in
    smaller blocks, at the end. 1000 packs with `max_block` 512 are 31 blocks of 32, then 4
    blocks of 2.
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
            # XOR with one number for a whole block keeps aligned runs: with 2, the places 0 1 2 3
            # become 2 3 0 1, so that the pairs 0 1 and 2 3 are still neighbours.
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
