"""Codes as JSON text, "[12, 7, 4095]", for many pictures at once.

Formatting numbers is most of the work of such an export, so the one loop over codes is compiled
where there is a compiler. Elsewhere Arrow takes the texts of codes from a table, in which each
stands four times: "12, " in the middle, "[12, " at the start, "12]" at the end and "[12]" alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.extras import need
from shardmill.io.room import Room

try:
    from shardmill.formats import _codetext  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _codetext = None

MAX_TABLE = 1 << 20
NONE = "no"


def code_texts(codes: NDArray[Any], num_codes: NDArray[np.int64], room: Room | None = None) -> Any:
    """Return an Arrow array of texts: the next `num_codes[i]` codes each, "no" if that is 0.

    They may lie in `room`, if it is given.
    """
    if _codetext is not None and codes.dtype.itemsize <= 2:
        return compiled_texts(codes, num_codes, room)
    return table_texts(codes, num_codes)


def compiled_texts(
    codes: NDArray[Any], num_codes: NDArray[np.int64], room: Room | None = None
) -> Any:
    """Return the texts of codes of one or two bytes."""
    pa = need("pyarrow", extra="tables")
    text = (room or Room()).take(7 * len(codes) + 2 * len(num_codes) + 8)
    bounds = np.empty(len(num_codes) + 1, np.int64)
    flat = np.ascontiguousarray(codes)
    num_bytes = _codetext.code_texts(flat, flat.itemsize, num_codes, text, bounds)
    offsets, values = pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(text[:num_bytes])
    return pa.StringArray.from_buffers(len(num_codes), offsets, values)


def table_texts(codes: NDArray[Any], num_codes: NDArray[np.int64]) -> Any:
    """Return the texts of codes of any size."""
    pa = need("pyarrow", extra="tables")
    size = int(codes.max(initial=0)) + 1
    if size > MAX_TABLE:
        return pa.array(_plain_texts(codes, num_codes), pa.string())
    table = _table(1 << (size - 1).bit_length())
    chosen = _choices(codes, num_codes, len(table) // 4)
    taken = table.take(pa.array(chosen))
    bounds = np.frombuffer(taken.buffers()[1], np.int32)[: len(chosen) + 1]
    ends = np.cumsum(np.maximum(num_codes, 1))
    offsets = np.ascontiguousarray(bounds[np.concatenate([[0], ends])])
    return pa.StringArray.from_buffers(len(num_codes), pa.py_buffer(offsets), taken.buffers()[2])


def _choices(codes: NDArray[Any], num_codes: NDArray[np.int64], size: int) -> NDArray[np.int32]:
    """Return the row of the table for each code, and one more for each picture without codes."""
    lengths = np.maximum(num_codes, 1)
    ends = np.cumsum(lengths)
    is_code = np.repeat(num_codes > 0, lengths)
    chosen = np.zeros(len(is_code), np.int32)
    chosen[is_code] = codes
    chosen[ends - lengths] += size
    chosen[ends - 1] += 2 * size
    chosen[ends[num_codes == 0] - 1] = 4 * size
    return chosen


@cache
def _table(num_codes: int) -> Any:
    pa = need("pyarrow", extra="tables")
    patterns = ("{}, ", "[{}, ", "{}]", "[{}]")
    texts = [pattern.format(code) for pattern in patterns for code in range(num_codes)]
    return pa.array([*texts, NONE], pa.string())


def _plain_texts(codes: NDArray[Any], num_codes: NDArray[np.int64]) -> list[str]:
    ends = np.cumsum(num_codes)
    bounds = zip((ends - num_codes).tolist(), ends.tolist())
    return [str(codes[a:b].tolist()) if b > a else NONE for a, b in bounds]
