from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import FormatError
from shardmill.sources import text as jsonscan
from shardmill.sources.stream import Span, TableRecord, cut
from shardmill.sources.text import Elements

PATH = Path("rows.json")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonscan, "WINDOW", 3)


def records_of(data: bytes, limit: int = 10_000) -> list[TableRecord]:
    return list(Elements(io.BytesIO(data), 0, limit, PATH).records(0, inside=False))


@given(st.lists(values, max_size=12), st.sampled_from([None, 0, 3]), st.booleans())
def test_elements_are_those_of_a_parser_that_holds_the_whole_file(
    rows: list[object], indent: int | None, ascii_only: bool
) -> None:
    data = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode()
    found = records_of(data)
    assert [json.loads(record.raw) for record in found] == rows
    assert [record.number for record in found] == list(range(len(rows)))
    assert all(data[r.offset : r.offset + r.num_bytes] == r.raw for r in found)


@given(st.lists(values, max_size=12), st.integers(1, 5))
def test_slices_give_the_same_elements(rows: list[object], per_slice: int) -> None:
    data = json.dumps(rows, indent=1).encode()
    again = []
    for piece in cut(
        Elements(io.BytesIO(data), 0, 10_000, PATH).records(0, inside=False), per_slice
    ):
        file = io.BytesIO(data)
        file.seek(piece.offset)
        span = Span(file, piece.end - piece.offset)
        elements = Elements(span, piece.offset, 10_000, PATH)
        again += list(elements.records(piece.number, inside=True))
    assert again == records_of(data)


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"", 0),
        (b"{}", 0),
        (b"[1, 2", 5),
        (b"[1 2]", 3),
        (b"[1,]", 3),
        (b"[1] x", 4),
        (b"[1, nope]", 4),
        (b"[" * 50_000, 1),
    ],
)
def test_what_is_not_an_array_says_where(data: bytes, offset: int) -> None:
    with pytest.raises(FormatError) as error:
        records_of(data)
    assert error.value.offset == offset


@given(st.lists(values, max_size=8), st.integers(1, 12), st.integers(1, 9))
def test_an_element_over_the_limit_is_passed_over(
    rows: list[object], limit: int, piece: int
) -> None:
    wrapped = [[row] for row in rows]
    data = json.dumps(wrapped, indent=1).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonscan, "PIECE", piece)
        found = records_of(data, limit=limit)
    everything = records_of(data)
    assert [(r.offset, r.num_bytes) for r in found] == [(r.offset, r.num_bytes) for r in everything]
    assert [r.problem is not None for r in found] == [r.num_bytes > limit for r in everything]


def test_a_huge_element_is_never_held_in_memory() -> None:
    data = b'[{"a": "' + (b"x" * 96 + b'\\"]') * 100_000 + b'"}, 1]'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonscan, "WINDOW", 1 << 16)
        tracemalloc.start()
        long, short = records_of(data, limit=100_000)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert long.problem is not None
    assert long.problem.reason == "row too long"
    assert short.raw == b"1"
    assert peak < 8 << 20


def test_an_element_that_does_not_end_stops_the_file() -> None:
    with pytest.raises(FormatError, match="its element does not end") as error:
        records_of(b'[1, "' + b"x" * 5000, limit=50)
    assert error.value.offset == 4


def test_a_short_element_that_is_no_json_is_not_called_long() -> None:
    with pytest.raises(FormatError, match="its element is not JSON") as error:
        records_of(b"[1, {nope}, " + b"2, " * 500 + b"3]", limit=50)
    assert error.value.offset == 4


cells = st.none() | st.integers() | st.text(max_size=8) | st.lists(st.integers(), max_size=3)


columns = st.dictionaries(
    st.text(max_size=5),
    st.lists(cells, max_size=5) | st.dictionaries(st.text(max_size=4), cells, max_size=5),
    max_size=4,
)


def cells_of(raw: bytes) -> list[Any]:
    return list(Elements(io.BytesIO(raw), 0, 1 << 20, Path("x.json")).all_columns())


@given(columns, st.sampled_from([None, 1]), st.booleans())
def test_every_cell_is_found_where_it_lies(made: Any, indent: int | None, escape: bool) -> None:
    raw = json.dumps(made, indent=indent, ensure_ascii=escape).encode("utf-8", "surrogatepass")
    found = cells_of(raw)
    expected = [
        (name, key, value)
        for name, column in made.items()
        for key, value in (
            column.items() if isinstance(column, dict) else (("", cell) for cell in column)
        )
    ]
    assert [(name, cell.key, json.loads(cell.record.raw)) for name, _, cell in found] == expected
    for _, is_keyed, cell in found:
        again = Elements(io.BytesIO(raw[cell.start : cell.end]), cell.start, 1 << 20, Path("x"))
        (same,) = again.cells(is_keyed=is_keyed)
        assert same.record.raw == cell.record.raw and same.end == cell.end


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b'{"a"', b'{"a":', b'{"a": 3}', b'{"a": {"b": 1}', b'{"a": {3: 1}}']
)
def test_what_is_no_object_of_columns_is_an_error(raw: bytes) -> None:
    with pytest.raises(FormatError, match=r"x\.json"):
        cells_of(raw)
