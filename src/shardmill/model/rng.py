"""Random numbers that depend on nothing but their keys: the same on every machine, in any order.

`mix` and `mix_array` are splitmix64. `SampleRng` makes the random choices for one sample, which
depend on (seed, epoch, sample key, what is being chosen) and so survive any resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

T = TypeVar("T")
_MASK64 = (1 << 64) - 1
# The constants of splitmix64; the first is 2**64 divided by the golden ratio.
GOLDEN = 0x9E3779B97F4A7C15
_STIR1, _STIR2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(*numbers: int) -> int:
    """Return 64 bits that depend on every number and on their order."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK64)) + GOLDEN & _MASK64
        state = (state ^ state >> 30) * _STIR1 & _MASK64
        state = (state ^ state >> 27) * _STIR2 & _MASK64
        state ^= state >> 31
    return state


def mix_array(numbers: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Return `mix(key, number)` for each number."""
    return stir_array((numbers ^ np.uint64(mix(key))) + np.uint64(GOLDEN))


def stir_array(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return each number with its bits spread over all 64: the last step of splitmix64."""
    state = (state ^ state >> np.uint64(30)) * np.uint64(_STIR1)
    state = (state ^ state >> np.uint64(27)) * np.uint64(_STIR2)
    return state ^ state >> np.uint64(31)


@dataclass(frozen=True, slots=True)
class SampleRng:
    """The random choices for one sample: a choice of the same name always has the same result."""

    seed: int
    epoch: int
    key: str

    def uniform(self, what: str) -> float:
        """Return a number in [0, 1) for the choice that `what` names."""
        text = f"{self.seed}\0{self.epoch}\0{self.key}\0{what}".encode("utf-8", "surrogatepass")
        # 53 bits are what a float can hold evenly.
        return float(xxhash.xxh3_64_intdigest(text) >> 11) / (1 << 53)

    def choose(self, what: str, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[int(self.uniform(what) * len(options))]
