"""Many lists of ids as one flat array and its bounds: list i is ids[bounds[i] : bounds[i + 1]]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """What a text encoder returns for a batch."""

    ids: NDArray[Any]
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> NDArray[Any]:
        return self.ids[self.bounds[number] : self.bounds[number + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        bounds = self.bounds.tolist()
        return (self.ids[a:b] for a, b in pairwise(bounds))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each list."""
        return np.diff(self.bounds)

    def same(self, other: Ragged) -> bool:
        """Whether both hold the same lists."""
        return np.array_equal(self.bounds, other.bounds) and np.array_equal(self.ids, other.ids)


def ragged(lists: Iterable[list[int]]) -> Ragged:
    """Return lists of ids as one flat array."""
    lists = list(lists)
    bounds = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(ids) for ids in lists], out=bounds[1:])
    return Ragged(np.fromiter(chain.from_iterable(lists), np.uint32, int(bounds[-1])), bounds)


def joined(arrays: Iterable[NDArray[Any]]) -> Ragged:
    """Return arrays of ids as one flat array."""
    arrays = list(arrays)
    bounds = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(ids) for ids in arrays], out=bounds[1:])
    return Ragged(np.concatenate([np.empty(0, np.uint32), *arrays]).astype(np.uint32), bounds)
