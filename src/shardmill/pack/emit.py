"""From patterns to packs of rows: rows are sorted by length and dealt to the places of patterns.

Rows of one length are dealt in a shuffled order, in which blocks of neighbouring rows stay together
when there are many: a block is one cache line of the length table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.pack.patterns import Patterns
from shardmill.pack.permute import shuffled

BLOCK_ROWS = 16
SHUFFLE_ROWS_SINGLY = 1 << 16
CHUNK = 1 << 22


def block_order(num_rows: int, key: int) -> tuple[NDArray[np.int64], int]:
    """Return the shuffled order of the blocks of rows, and how many rows a block has."""
    block_rows = 1 if num_rows <= SHUFFLE_ROWS_SINGLY else BLOCK_ROWS
    return shuffled(-(-num_rows // block_rows), key), block_rows


def sort_rows(
    lengths: NDArray[np.int32],
    blocks: NDArray[np.int64],
    block_rows: int,
    histogram: NDArray[np.int64],
) -> NDArray[np.uint32]:
    """Return the rows by rising length, equal lengths in block order; length 0 is left out."""
    rows = (blocks[:, None] * block_rows + np.arange(block_rows)).reshape(-1)
    rows = rows[rows < len(lengths)].astype(np.uint32)
    arriving = lengths[rows]
    if len(histogram) <= 1 << 16:
        # numpy sorts 16-bit integers by counting, in linear time.
        arriving = arriving.astype(np.uint16)
    order = np.argsort(arriving, kind="stable")
    return rows[order[len(lengths) - int(histogram.sum()) :]]


def deal_rows(
    patterns: Patterns, rows: NDArray[np.uint32], histogram: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Return the members of all packs: pattern by pattern, and each pattern's packs in turn."""
    members = np.empty(len(rows), np.uint32)
    documents = patterns.documents()
    runs_of = np.diff(patterns.run_starts)
    pattern = np.repeat(np.arange(len(patterns)), runs_of)
    first_member = np.cumsum(documents * patterns.repeats) - documents * patterns.repeats
    counts = patterns.run_count.astype(np.int64)
    place = np.cumsum(counts) - counts
    base = first_member[pattern] + place - place[patterns.run_starts[:-1]][pattern]
    stride = documents[pattern]
    num_rows = counts * patterns.repeats[pattern]
    # The runs of one length, in pattern order, share out that length's rows from first to last.
    by_length = np.argsort(patterns.run_length, kind="stable")
    _deal_runs(members, rows, *(a[by_length] for a in (base, stride, counts, num_rows)))
    return members


def _deal_runs(
    members: NDArray[np.uint32],
    rows: NDArray[np.uint32],
    base: NDArray[np.int64],
    stride: NDArray[np.int64],
    counts: NDArray[np.int64],
    num_rows: NDArray[np.int64],
) -> None:
    ends = np.cumsum(num_rows)
    done = run = 0
    while run < len(ends):
        # Some runs at a time, so that memory stays bounded.
        stop = max(run + 1, int(np.searchsorted(ends, done + CHUNK, side="right")))
        sizes = num_rows[run:stop]
        of = np.repeat(np.arange(run, stop), sizes)
        nth = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        pack, place = np.divmod(nth, counts[of])
        end = int(ends[stop - 1])
        members[base[of] + pack * stride[of] + place] = rows[done:end]
        done, run = end, stop
