from __future__ import annotations

import io
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.sources.tables.records import Record, cut, json_fields, line_records, text_fields
from shardmill.sources.tables.stream import Span

LIMIT = 1000
lines = st.lists(
    st.one_of(
        st.dictionaries(st.text(max_size=4), st.integers(), max_size=3).map(json.dumps),
        st.sampled_from(["", "  ", "\t\r", "{broken", "[1]"]),
    ),
    max_size=30,
)


def records_of(data: bytes, limit: int = LIMIT) -> list[Record]:
    return list(line_records(io.BytesIO(data), 0, 0, limit))


@given(lines, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_records_are_the_lines_that_are_not_blank(
    texts: list[str], newline: str, ends_with_newline: bool
) -> None:
    data = newline.join(texts).encode() + (newline.encode() if ends_with_newline else b"")
    expected = [(n, line) for n, line in enumerate(data.split(b"\n")) if line.strip()]
    found = records_of(data)
    assert [(r.number, r.raw.rstrip(b"\n")) for r in found] == expected
    assert all(data[r.offset : r.offset + r.num_bytes] == r.raw for r in found)


@given(lines, st.integers(1, 7))
def test_slices_hold_every_record_once_wherever_they_are_cut(
    texts: list[str], per_slice: int
) -> None:
    data = "\n".join(texts).encode()
    again = []
    for piece in cut(line_records(io.BytesIO(data), 0, 0, LIMIT), per_slice):
        assert piece.num_rows <= per_slice
        file = io.BytesIO(data)
        file.seek(piece.offset)
        span = Span(file, piece.end - piece.offset)
        again += list(line_records(span, piece.number, piece.offset, LIMIT))
    assert again == records_of(data)


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(1, 20))
def test_a_line_over_the_limit_is_a_record_with_a_problem(sizes: list[int], limit: int) -> None:
    data = b"".join(b"x" * size + b"\n" for size in sizes)
    found = records_of(data, limit)
    assert [r.problem is not None for r in found] == [size > limit for size in sizes if size]
    assert [r.num_bytes for r in found] == [size + 1 for size in sizes if size]


class Endless:
    """A line of many megabytes that exists only while it is read."""

    def __init__(self, num_bytes: int) -> None:
        self.left = num_bytes

    def readline(self, size: int) -> bytes:
        count = min(size, self.left)
        self.left -= count
        return b"x" * count

    read = readline


def test_a_huge_line_is_never_held_in_memory() -> None:
    tracemalloc.start()
    (record,) = line_records(Endless(1 << 30), 0, 0, 1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert record.num_bytes == 1 << 30
    assert str(record.problem) == (
        "row too long: row 1 at byte 0: 1073741824 bytes, the limit is 1048576"
    )
    assert peak < 8 << 20


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b"{broken", "not JSON", "row 3 at byte 70"),
        (b'{"a": "\xff"}', "not UTF-8", "byte 77"),
        (b"[1, 2]", "row is not an object", "is a list"),
        (b'{"a": ' + b"[" * 100_000, "not JSON", "row 3"),
        (b'{"a": NaN, ' + b"[" * 100_000, "not JSON", "row 3"),
        (b'{"a": "\\ud800"}', "not JSON", "row 3"),
    ],
)
def test_a_bad_line_says_where_and_why(line: bytes, reason: str, detail: str) -> None:
    with pytest.raises(SampleError) as error:
        json_fields(Record(2, 70, len(line), line))
    assert error.value.reason == reason
    assert detail in error.value.detail


def test_what_python_writes_for_missing_numbers_is_none() -> None:
    line = json.dumps({"a": float("nan"), "b": [float("inf")], "c": "NaN"}).encode()
    assert json_fields(Record(0, 0, len(line), line)) == {"a": None, "b": [None], "c": "NaN"}


def test_a_byte_order_mark_is_not_content() -> None:
    assert json_fields(Record(0, 0, 0, b'\xef\xbb\xbf{"a": 1}\n')) == {"a": 1}
    assert text_fields(Record(0, 0, 0, b"\xef\xbb\xbfcaf\xc3\xa9\r\n")) == {"text": "café"}
