"""Arrow arrays of what lies in memory, without a copy.

They are made of buffers: `pyarrow.array` loads pandas to look at what it is given, and that takes
longer than many an export.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import need
from shardmill.shards.weave import Column


def number_array(values: NDArray[Any]) -> Any:
    """Return an array of numbers."""
    pa = need("pyarrow", extra="tables")
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, content])


def list_array(values: NDArray[Any], bounds: NDArray[Any]) -> Any:
    """Return an array of lists: list i has the values bounds[i] to bounds[i + 1]."""
    pa = need("pyarrow", extra="tables")
    items, offsets = number_array(values), pa.py_buffer(bounds.astype(np.int32))
    kind = pa.list_(items.type)
    return pa.Array.from_buffers(kind, len(bounds) - 1, [None, offsets], children=[items])


def string_array(texts: Column) -> Any:
    """Return an array of texts in UTF-8 that lie one after the other."""
    pa = need("pyarrow", extra="tables")
    bounds = np.append(texts.starts, len(texts.data)).astype(np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(bounds), pa.py_buffer(texts.data))
