"""Packs that look alike, described once: a pattern is a list of lengths and how often it is made.

Fitting works on the histogram of lengths, never on samples: ten thousand packs of the lengths
4000, 4000, 192 are one pattern. `emit` turns patterns into packs of rows at the end.

A pattern is stored as runs of equal lengths: (4000, 2), (192, 1). Runs of pattern p are those from
`run_starts[p]` to `run_starts[p + 1]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Patterns:
    """Pack patterns in CSR form, each made `repeats` times."""

    run_length: NDArray[np.int32]
    run_count: NDArray[np.int32]
    run_starts: NDArray[np.int64]
    repeats: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.repeats)

    @property
    def num_packs(self) -> int:
        """How many packs all patterns make."""
        return int(self.repeats.sum())

    def documents(self) -> NDArray[np.int64]:
        """The number of documents of each pattern."""
        return self.sum_runs(self.run_count.astype(np.int64))

    def tokens(self) -> NDArray[np.int64]:
        """The tokens of each pattern, in the units of its lengths."""
        return self.sum_runs(self.run_length.astype(np.int64) * self.run_count)

    def sum_runs(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over the runs of each pattern."""
        total = np.concatenate([[0], np.cumsum(values)])
        return np.asarray(total[self.run_starts[1:]] - total[self.run_starts[:-1]])


def single_runs(items: NDArray[np.int32], ends: NDArray[np.int64], repeats: int) -> Patterns:
    """Return packs given as items and pack ends as patterns, each made `repeats` times."""
    return Patterns(
        items,
        np.ones(len(items), np.int32),
        np.concatenate([np.zeros(1, np.int64), ends]),
        np.full(len(ends), repeats, np.int64),
    )


def join_patterns(parts: Sequence[Patterns]) -> Patterns:
    """Return the patterns of all parts after each other."""
    first_run = np.cumsum([0] + [len(part.run_length) for part in parts])
    return Patterns(
        np.concatenate([part.run_length for part in parts]),
        np.concatenate([part.run_count for part in parts]),
        np.concatenate(
            [np.zeros(1, np.int64)]
            + [part.run_starts[1:] + first for part, first in zip(parts, first_run)]
        ),
        np.concatenate([part.repeats for part in parts]),
    )
