"""Runs as parquet stores them: levels of lists, and numbers into a dictionary.

A run of one value is varint(count << 1) and the value in as many bytes as its bits need; numbers
as they are, eight to a group, are varint(groups << 1 | 1) and all of their bits. So a list of 1,000
ids has two runs of repetition levels, and ids of 16 bits are stored as they lie in memory.

Levels of a list that may be null, of elements that may: repetition 0 begins a list and 1 goes on
with it; definition 3 is an element and 1 an empty list.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.formats.thrift import varint

GROUP = 8
EMPTY, ELEMENT = 1, 3


def runs(values: NDArray[Any], counts: NDArray[Any]) -> bytes:
    """Return runs of values below 256; neighbours that are equal become one."""
    used = np.flatnonzero(counts)
    values, counts = values[used], counts[used]
    first = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    if not len(first):
        return b""
    headers = np.add.reduceat(counts.astype(np.int64, copy=False), first) << 1
    num_bytes = -(-int(headers.max()).bit_length() // 7)
    table = np.empty((len(headers), num_bytes + 1), np.uint8)
    is_used = np.ones(table.shape, bool)
    for byte in range(num_bytes):
        table[:, byte] = headers & 0x7F | (headers > 0x7F) << 7
        is_used[:, byte] = headers > 0
        headers >>= 7
    table[:, -1] = values[first]
    return bytes(table[is_used])


def plain_numbers(values: NDArray[np.uint16]) -> tuple[bytes, NDArray[np.uint16], bytes]:
    """Return numbers of 16 bits as one run: what comes before them, they, and what fills it up."""
    num_groups = -(-len(values) // GROUP)
    header = varint(num_groups << 1 | 1) if num_groups else b""
    return header, values, bytes(2 * (num_groups * GROUP - len(values)))


def list_levels(bounds: NDArray[np.int64]) -> tuple[int, bytes]:
    """Return how many levels the lists between these bounds have, and both kinds of levels."""
    lengths = np.diff(bounds)
    counts = np.maximum(lengths, 1)  # an empty list has levels as well
    repetition = np.ones(2 * len(counts), np.int64)
    repetition[1::2] = counts - 1
    begins_or_goes_on = np.tile(np.array([0, 1], np.uint8), len(counts))
    definition = np.where(lengths > 0, np.uint8(ELEMENT), np.uint8(EMPTY))
    levels = runs(begins_or_goes_on, repetition), runs(definition, counts)
    return int(counts.sum()), b"".join(struct.pack("<I", len(level)) + level for level in levels)


def value_levels(num_values: int) -> bytes:
    """Return the levels of values that might be null, and are not."""
    level = runs(np.array([1]), np.array([num_values]))
    return struct.pack("<I", len(level)) + level
