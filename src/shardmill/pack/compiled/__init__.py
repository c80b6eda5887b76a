"""The five loops of planning, compiled by numba: same arguments and answers as the plain ones.

Only `engine` imports this package, and only where numba is installed. Compiled code is cached on
disk beside the source (or in NUMBA_CACHE_DIR), so the first call of a process takes a fraction of
a second.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from shardmill.pack.compiled import emit, fit, window
from shardmill.pack.compiled.halve import halve as halve
from shardmill.pack.patterns import Patterns
from shardmill.pack.window import Filled


def best_fit(histogram: NDArray[np.int64], capacity: int, max_documents: int) -> Patterns:
    """Return the patterns of `pack.fit.best_fit`."""
    return Patterns(*fit.best_fit(histogram, capacity, min(max_documents, capacity)))


def fill_window(
    stream: NDArray[np.int32],
    capacity: int,
    window_size: int,
    blind: int,
    max_documents: int,
    flush: bool,
) -> Filled:
    """Return the packs of `pack.window.fill_window`."""
    limit = min(max_documents, window_size)
    return Filled(*window.fill_window(stream, capacity, window_size, blind, limit, flush))


def sort_rows(
    lengths: NDArray[np.int32],
    blocks: NDArray[np.int64],
    block_rows: int,
    histogram: NDArray[np.int64],
) -> NDArray[np.uint32]:
    """Return the rows of `pack.emit.sort_rows`."""
    return cast(NDArray[np.uint32], emit.sort_rows(lengths, blocks, block_rows, histogram))


def deal_rows(
    patterns: Patterns, rows: NDArray[np.uint32], histogram: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Return the members of `pack.emit.deal_rows`."""
    arrays = (patterns.run_length, patterns.run_count, patterns.run_starts, patterns.repeats)
    return cast(NDArray[np.uint32], emit.deal_rows(*arrays, rows, histogram))
