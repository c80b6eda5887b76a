"""The keys of many rows as flat UTF-8, without a step a key.

Key i is `text[bounds[i] : bounds[i + 1]]`. Stored are prefix, width and number (`io.keycolumn`):
"cc12m-", 8 and 42 are the bytes of "cc12m-" and eight digits, of which the last is 42 % 10.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.io.keycolumn import KeyColumn

ZERO = ord("0")
POWERS = 10 ** np.arange(17, -1, -1, dtype=np.uint64)  # of eighteen digits


def key_texts(
    keys: KeyColumn, rows: NDArray[Any] | slice
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the text and the bounds of the keys of these rows.

    A number with more digits than its width has room for is a `ValueError`.
    """
    prefix = keys.prefix[rows].astype(np.int64)
    first, widths = np.frombuffer(keys.prefixes.bounds, np.int64), keys.widths[prefix]
    starts, lengths = first[prefix], first[prefix + 1] - first[prefix]
    bounds = np.concatenate([[0], np.cumsum(lengths + widths)])
    text = np.empty(bounds[-1], np.uint8)
    _copy(keys.prefixes.data, starts, text, bounds[:-1], lengths)
    digits = _digits(keys.number[rows].astype(np.uint64), widths)
    ends = np.arange(1, len(prefix) + 1) * digits.shape[1]
    _copy(digits.data, ends - widths, text, bounds[1:] - widths, widths)
    return text, bounds


def _digits(numbers: NDArray[np.uint64], widths: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the digits of each number, as many as the widest has, with zeros in front."""
    powers = POWERS[len(POWERS) - int(widths.max(initial=0)) :]
    if (numbers[widths > 0] // 10 ** widths[widths > 0].astype(np.uint64)).any():
        raise ValueError("a key has a number that is longer than its width")
    return (numbers[:, None] // powers % 10 + ZERO).astype(np.uint8)


def _copy(
    source: Any, starts: NDArray[Any], target: Any, places: NDArray[Any], lengths: NDArray[Any]
) -> None:
    """Copy runs of bytes: `lengths[i]` from `starts[i]` on to `places[i]` on."""
    flat = np.frombuffer(source, np.uint8)
    target[_ranges(places, lengths)] = flat[_ranges(starts, lengths)]


def _ranges(starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return start, start + 1, ... of each range, one after the other."""
    shifts: NDArray[np.int64] = starts - np.cumsum(lengths, dtype=np.int64) + lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(shifts, lengths)
