"""How often each row of a data set is taken for a ratio such as 0.25 or 2.5, with exact counts.

Row i has the number h(i), where h is a one-to-one mixing of 64-bit numbers that depends on the
seed; the n rows with the smallest numbers are the sample. Whether a row is in it needs only h(i)
and the n-th smallest number, found by four passes of a radix selection in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError

CHUNK = 1 << 20
DIGIT_BITS = 16
DIGIT_MASK = np.uint64((1 << DIGIT_BITS) - 1)


@dataclass(frozen=True, slots=True)
class Copies:
    """Every row `base` times, and once more if its number is at most `threshold` (-1: none)."""

    base: int
    threshold: int
    seed: int

    def of_rows(self, first: int, num_rows: int) -> NDArray[np.int64]:
        """Return how often each of these rows is taken."""
        copies = np.full(num_rows, self.base, np.int64)
        if self.threshold >= 0:
            copies += mixed(self.seed, first, num_rows) <= np.uint64(self.threshold)
        return copies


def copies_for(ratio: float, num_rows: int, seed: int) -> Copies:
    """Return the copies that make `num_rows` rows `ratio` times as many.

    Below 1 that is max(1, floor(num_rows * ratio)) different rows; above, every row int(ratio)
    times and floor(num_rows * rest) of them once more. The ratio is meant as it is written: 0.29 of
    100 rows are 29, though the float 0.29 is a little less.
    """
    exact = Fraction(str(ratio))
    if exact <= 0:
        raise ConfigError(f"a ratio must be above 0, got {ratio}: leave the data set out instead")
    base = int(exact)
    extra = int(num_rows * (exact - base))
    if base == 0:
        extra = min(max(1, extra), num_rows)
    return Copies(base, _nth_smallest(seed, num_rows, extra), seed)


def seed_of(seed: int, name: str) -> int:
    """Return a seed of its own for each data set, so that equal files give different samples."""
    return int(xxhash.xxh3_64_intdigest(name.encode(), seed=seed & 0xFFFFFFFFFFFFFFFF))


def mixed(seed: int, first: int, num_rows: int) -> NDArray[np.uint64]:
    """Return the numbers of rows first, first + 1, ... (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        z = np.arange(first, first + num_rows, dtype=np.uint64)
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _nth_smallest(seed: int, num_rows: int, count: int) -> int:
    """Return the `count`-th smallest number of the rows, -1 if `count` is 0."""
    if count == 0:
        return -1
    prefix, left = 0, count
    for shift in range(64 - DIGIT_BITS, -1, -DIGIT_BITS):
        histogram = np.zeros(1 << DIGIT_BITS, np.int64)
        for numbers in _chunks(seed, num_rows):
            if shift + DIGIT_BITS < 64:
                numbers = numbers[numbers >> np.uint64(shift + DIGIT_BITS) == np.uint64(prefix)]
            digits = (numbers >> np.uint64(shift)) & DIGIT_MASK
            histogram += np.bincount(digits.astype(np.int64), minlength=1 << DIGIT_BITS)
        below = np.cumsum(histogram)
        digit = int(np.searchsorted(below, left))
        left -= int(below[digit - 1]) if digit else 0
        prefix = prefix << DIGIT_BITS | digit
    return prefix


def _chunks(seed: int, num_rows: int) -> Iterator[NDArray[np.uint64]]:
    for first in range(0, num_rows, CHUNK):
        yield mixed(seed, first, min(CHUNK, num_rows - first))
