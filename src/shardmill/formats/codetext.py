"""Codes as JSON text, "[12, 7, 4095]", for many pictures at once.

Every code has its text in a table three times: with "[" before it, with ", " after it and with "]"
after it. Taking the right one of each code from the table, with the bytes of all of them one after
the other, gives the texts of all pictures; nothing is formatted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.extras import need

MAX_TABLE = 1 << 20


def code_texts(pictures: Sequence[NDArray[Any]]) -> Any:
    """Return an Arrow array with the JSON text of each picture's codes."""
    pa = need("pyarrow", extra="tables")
    if not pictures:
        return pa.array([], pa.string())
    lengths = np.array([len(codes) for codes in pictures])
    flat = np.concatenate(pictures)
    size = int(flat.max(initial=0)) + 1
    if size > MAX_TABLE or (lengths < 2).any():
        return pa.array([_plain_text(codes) for codes in pictures], pa.string())
    table = _table(1 << (size - 1).bit_length())
    num_codes = len(table) // 3
    ends = np.cumsum(lengths)
    numbers = flat.astype(np.int32)
    numbers[ends - lengths] += num_codes
    numbers[ends - 1] += 2 * num_codes
    taken = table.take(pa.array(numbers))
    bounds = np.frombuffer(taken.buffers()[1], np.int32)[: len(flat) + 1]
    offsets = np.ascontiguousarray(bounds[np.concatenate([[0], ends])])
    return pa.StringArray.from_buffers(len(pictures), pa.py_buffer(offsets), taken.buffers()[2])


@cache
def _table(num_codes: int) -> Any:
    """Return the texts "c, ", then "[c, ", then "c]" of all codes."""
    pa = need("pyarrow", extra="tables")
    numbers = list(map(str, range(num_codes)))
    middle = [f"{number}, " for number in numbers]
    first = [f"[{number}, " for number in numbers]
    last = [f"{number}]" for number in numbers]
    return pa.array([*middle, *first, *last], pa.string())


def _plain_text(codes: NDArray[Any]) -> str:
    return str(codes.tolist())
