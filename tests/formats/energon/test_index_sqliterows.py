"""Cells hold the rows they were made of, read by the rules of the format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, one_of, sampled_from, text

from shardmill.formats.energon.index import row_cells
from shardmill.shards.weave import texts

WIDTHS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
NUMBERS = one_of(integers(-300, 300), integers(-(1 << 63), (1 << 63) - 1))
# Around the lengths at which a type, or a row, takes a varint of two bytes.
TEXTS = one_of(text(max_size=5), sampled_from(["a" * n for n in (56, 57, 58, 119, 120, 1000)]))


def read_varint(content: bytes) -> tuple[int, bytes]:
    number = 0
    for place, byte in enumerate(content, 1):
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            return number, content[place:]
    raise AssertionError("a varint has no end")


def read_cell(cell: bytes) -> list[int | str]:
    num_bytes, row = read_varint(cell)
    assert num_bytes == len(row)
    header_bytes, types = read_varint(row)
    types, values = types[: header_bytes - (len(row) - len(types))], row[header_bytes:]
    found: list[int | str] = []
    while types:
        kind, types = read_varint(types)
        width = WIDTHS[kind] if kind in WIDTHS else (kind - 13) // 2
        content, values = values[:width], values[width:]
        assert kind in WIDTHS or kind % 2
        found.append(
            int.from_bytes(content, signed=True) if kind in WIDTHS else content.decode("utf-8")
        )
    assert not values
    return found


@given(
    rows=integers(1, 6).flatmap(
        lambda n: lists(
            one_of(
                lists(NUMBERS, min_size=n, max_size=n),
                lists(TEXTS, min_size=n, max_size=n),
            ),
            min_size=1,
            max_size=5,
        )
    )
)
def test_cells_are_the_rows(rows: list[list[Any]]) -> None:
    columns = [
        np.array(column, np.int64)
        if isinstance(column[0], int)
        else texts([value.encode() for value in column])
        for column in rows
    ]
    cells = row_cells(columns)
    assert [read_cell(bytes(cells[row])) for row in range(len(cells))] == [
        list(row) for row in zip(*rows)
    ]


@pytest.mark.parametrize(
    ("numbers", "width"),
    [
        ([0, 127], 1),
        ([-128], 1),
        ([128], 2),
        ([-129, 0], 2),
        ([32768], 4),
        ([(1 << 31) - 1], 4),
        ([1 << 31], 8),
    ],
)
def test_a_column_has_the_width_of_its_largest_number(numbers: list[int], width: int) -> None:
    cells = row_cells([np.array(numbers)])
    # The bytes of the row, of its header and the type are in front.
    assert cells.lengths.tolist() == [3 + width] * len(numbers)


@pytest.mark.parametrize("rest", range(3))
def test_every_length_of_a_text(rest: int) -> None:
    names = ["a" * length for length in range(300)]
    numbers = [np.full(300, 1 << 8 * column) for column in range(rest)]
    cells = row_cells([*numbers, texts([name.encode() for name in names])])
    assert [read_cell(bytes(cells[row]))[-1] for row in range(300)] == names
