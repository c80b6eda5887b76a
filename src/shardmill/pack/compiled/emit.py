"""Sorting rows by length and dealing them to patterns, as `pack.emit` does it, in one pass each."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardmill.pack.compiled.decorator import compiled


@compiled
def sort_rows(lengths: Any, blocks: Any, block_rows: int, histogram: Any) -> Any:
    """Return the rows by rising length, equal lengths in block order; length 0 is left out."""
    place = np.cumsum(histogram) - histogram
    rows = np.empty(histogram.sum(), np.uint32)
    for block in blocks:
        for row in range(block * block_rows, min((block + 1) * block_rows, len(lengths))):
            length = lengths[row]
            if length > 0:
                rows[place[length]] = row
                place[length] += 1
    return rows


@compiled
def deal_rows(
    run_length: Any, run_count: Any, run_starts: Any, repeats: Any, rows: Any, histogram: Any
) -> Any:
    """Return the members of all packs: pattern by pattern, and each pattern's packs in turn."""
    place = np.cumsum(histogram) - histogram
    members = np.empty(len(rows), np.uint32)
    start = 0
    for pattern in range(len(repeats)):
        documents = 0
        for run in range(run_starts[pattern], run_starts[pattern + 1]):
            documents += run_count[run]
        column = start
        for run in range(run_starts[pattern], run_starts[pattern + 1]):
            source, count = place[run_length[run]], run_count[run]
            for pack in range(repeats[pattern]):
                for nth in range(count):
                    members[column + pack * documents + nth] = rows[source]
                    source += 1
            place[run_length[run]] = source
            column += count
        start += documents * repeats[pattern]
    return members
