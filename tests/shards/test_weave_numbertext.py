"""Numbers as text: what str() says, compiled or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers, lists, sampled_from
from numpy.typing import NDArray

from shardmill.shards import weave as numbertext
from shardmill.shards.weave import Column, number_lists, numbers, plain_lists

DTYPES = ("|u1", "<u2", "<u4", "<u8", "<i4", "<i8")


@given(data(), sampled_from(DTYPES), sampled_from([b",", b", "]), sampled_from([b"", b"[]"]))
def test_rows_are_listed(data: DataObject, dtype: str, separator: bytes, around: bytes) -> None:
    largest = int(np.iinfo(dtype).max)
    some = integers(0, largest) | sampled_from([9, 10, 99, 100, largest]) | integers(0, 9)
    rows = data.draw(lists(lists(some, max_size=5), max_size=5))
    values = np.array([value for row in rows for value in row], dtype)
    bounds = np.cumsum([0, *map(len, rows)])
    wanted = [
        around[:1] + separator.join(str(value).encode() for value in row) + around[1:]
        for row in rows
    ]
    assert rows_of(number_lists(values, bounds, separator, around)) == wanted
    assert rows_of(plain_lists(values, np.diff(bounds), separator, around)) == wanted


def rows_of(column: Column) -> list[bytes]:
    return [bytes(column[row]) for row in range(len(column))]


@pytest.mark.parametrize("values", [np.array([1, -1]), np.array([1.0])])
def test_what_is_no_whole_number_is_refused(values: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        numbers(values)


@pytest.mark.skipif(numbertext._weave is None, reason="there was no compiler")
def test_buffers_that_do_not_fit_are_refused() -> None:
    values, counts = np.arange(4, dtype=np.uint16), np.array([2, 2])
    text, bounds = np.empty(40, np.uint8), np.empty(3, np.int64)
    write = numbertext._weave.number_texts
    assert write(values, 2, counts, b",", b"[", b"]", text, bounds) == 10
    for wrong in (
        (values, 3, counts, b",", b"", b"", text, bounds),
        (values, 2, np.array([2, 3]), b",", b"", b"", text, bounds),
        (values, 2, np.array([5, -1]), b",", b"", b"", text, bounds),
        (values, 2, counts, b"", b"", b"", text, bounds),
        (values, 2, counts, b",,,", b"", b"", text, bounds),
        (values, 2, counts, b",", b"[[", b"", text, bounds),
        (values, 2, counts, b",", b"", b"]]", text, bounds),
        (values, 2, counts, b",", b"", b"", text[:39], bounds),
        (values, 2, counts, b",", b"", b"", text, bounds[:2]),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            write(*wrong)
