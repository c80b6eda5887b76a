"""The keys of many rows as a column of UTF-8, without a step a key.

Stored are prefix, width and number (`io.keycolumn`): "cc12m-", 8 and 42 are the bytes of "cc12m-"
and eight digits, woven together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.formats.utf8 import is_utf8
from shardmill.io.keycolumn import KeyColumn
from shardmill.io.weave import Column, weave

ZERO = ord("0")
POWERS = 10 ** np.arange(17, -1, -1, dtype=np.uint64)  # of eighteen digits


def key_texts(keys: KeyColumn, rows: NDArray[Any] | slice) -> Column:
    """Return the keys of these rows.

    Keys that are not UTF-8, and numbers too long for their width, are a `ValueError`.
    """
    prefix = keys.prefix[rows].astype(np.int64)
    bounds, widths = np.frombuffer(keys.prefixes.bounds, np.int64), keys.widths[prefix]
    heads = Column(
        np.frombuffer(keys.prefixes.data, np.uint8),
        bounds[prefix],
        bounds[prefix + 1] - bounds[prefix],
    )
    digits = _digits(keys.number[rows].astype(np.uint64), widths)
    ends = np.arange(1, len(prefix) + 1) * digits.shape[1]
    tails = Column(digits.reshape(-1), ends - widths, widths.astype(np.int64))
    found = weave([heads, tails])
    if not is_utf8(found.data, found.starts):
        raise ValueError("a key is not UTF-8, as texts must be")
    return found


def _digits(numbers: NDArray[np.uint64], widths: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the digits of each number, as many as the widest has, with zeros in front."""
    powers = POWERS[len(POWERS) - int(widths.max(initial=0)) :]
    if (numbers[widths > 0] // 10 ** widths[widths > 0].astype(np.uint64)).any():
        raise ValueError("a key has a number that is longer than its width")
    return (numbers[:, None] // powers % 10 + ZERO).astype(np.uint8)
