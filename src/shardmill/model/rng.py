"""Random choices that depend on nothing but (seed, pass, sample key, what is being chosen)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import xxhash

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dice:
    """The dice of one sample: the same throw gives the same face, in any order, on any machine."""

    seed: int
    epoch: int
    key: str

    def throw(self, what: str) -> float:
        """Return a number in [0, 1) for the choice that `what` names."""
        text = f"{self.seed}\0{self.epoch}\0{self.key}\0{what}".encode("utf-8", "surrogatepass")
        # 53 bits are what a float can hold evenly.
        return float(xxhash.xxh3_64_intdigest(text) >> 11) / (1 << 53)

    def choose(self, what: str, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[int(self.throw(what) * len(options))]
