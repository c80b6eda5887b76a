from __future__ import annotations

import csv
import gzip
import io
import json
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import FormatError, SampleError
from shardmill.sources.stream import Span, TableRecord, cut
from shardmill.sources.text import (
    TextTable,
    delimited_fields,
    delimited_records,
    json_fields,
    line_records,
    open_table,
    text_fields,
)


def opened(path: Path, content: str, format: str, columns: tuple[str, ...] = ()) -> TextTable:
    path.write_text(content)
    return open_table(path, format, columns, 1000)


@pytest.mark.parametrize(
    ("content", "format"),
    [
        ('[{"a": 1}]', "array"),
        (" \n\t [1]", "array"),
        ('{"a": 1}\n{"a": 2}', "jsonl"),
        ('{"a": "one row"}', "jsonl"),
        ("{broken\n{}\n", "jsonl"),
        ("", "jsonl"),
    ],
)
def test_a_json_file_is_an_array_or_lines(tmp_path: Path, content: str, format: str) -> None:
    assert opened(tmp_path / "a.json", content, "json").format == format


@pytest.mark.parametrize("content", ['{"a": [1], "b": [2]}', '{\n "a": [1]\n}', '{"a": {"b": 1}}'])
def test_one_object_is_no_table(tmp_path: Path, content: str) -> None:
    with pytest.raises(FormatError, match=r"is one JSON object .*, not rows"):
        opened(tmp_path / "a.json", content, "json")


def test_a_csv_begins_after_its_header(tmp_path: Path) -> None:
    table = opened(tmp_path / "a.csv", 'a,"b\nc"\n1,2\n', "csv")
    assert (table.columns, table.data_offset) == (("a", "b\nc"), 8)
    named = opened(tmp_path / "b.csv", "1,2\n", "csv", ("a", "b"))
    assert (named.columns, named.data_offset) == (("a", "b"), 0)
    assert [piece.num_rows for piece in table.slices(10)] == [1]


LIMIT = 1000
PATH = Path("rows.csv")


lines = st.lists(
    st.one_of(
        st.dictionaries(st.text(max_size=4), st.integers(), max_size=3).map(json.dumps),
        st.sampled_from(["", "  ", "\t\r", "{broken", "[1]"]),
    ),
    max_size=30,
)


def records_of(data: bytes, limit: int = LIMIT) -> list[TableRecord]:
    return list(line_records(io.BytesIO(data), 0, 0, limit, PATH))


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
    for piece in cut(line_records(io.BytesIO(data), 0, 0, LIMIT, PATH), per_slice):
        assert piece.num_rows <= per_slice
        file = io.BytesIO(data)
        file.seek(piece.offset)
        span = Span(file, piece.end - piece.offset)
        again += list(line_records(span, piece.number, piece.offset, LIMIT, PATH))
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
    (record,) = line_records(Endless(1 << 30), 0, 0, 1 << 20, PATH)
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
        json_fields(TableRecord(2, 70, len(line), line))
    assert error.value.reason == reason
    assert detail in error.value.detail


def test_what_python_writes_for_missing_numbers_is_none() -> None:
    line = json.dumps({"a": float("nan"), "b": [float("inf")], "c": "NaN"}).encode()
    assert json_fields(TableRecord(0, 0, len(line), line)) == {"a": None, "b": [None], "c": "NaN"}


def test_a_byte_order_mark_is_not_content() -> None:
    assert json_fields(TableRecord(0, 0, 0, b'\xef\xbb\xbf{"a": 1}\n')) == {"a": 1}
    assert text_fields(TableRecord(0, 0, 0, b"\xef\xbb\xbfcaf\xc3\xa9\r\n")) == {"text": "café"}


cells = st.text(st.sampled_from('ab,"\n\r é\t;'), max_size=8)


tables = st.lists(st.lists(cells, min_size=1, max_size=3), max_size=12)


def csv_records(data: bytes, limit: int = 10_000, delimiter: str = ",") -> list[TableRecord]:
    return list(delimited_records(io.BytesIO(data), 0, 0, limit, PATH, delimiter))


def written(rows: list[list[str]], delimiter: str) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows(rows)
    return text.getvalue().encode()


@given(tables, st.sampled_from(",\t"))
def test_records_are_the_rows_that_the_csv_module_reads(
    rows: list[list[str]], delimiter: str
) -> None:
    data = written(rows, delimiter)
    found = csv_records(data, delimiter=delimiter)
    assert [record.cells for record in found] == rows
    assert b"".join(record.raw for record in found) == data


@given(st.lists(st.text(st.sampled_from('ab,"\n '), max_size=12), max_size=12))
def test_untidy_text_is_cut_as_the_csv_module_cuts_it(lines: list[str]) -> None:
    data = "\n".join(lines).encode()
    naive = [row for row in csv.reader(io.StringIO(data.decode(), newline="")) if row]
    assert [record.cells for record in csv_records(data)] == naive


@given(tables, st.integers(1, 4))
def test_slices_give_the_same_records(rows: list[list[str]], per_slice: int) -> None:
    data = written(rows, ",")
    again = []
    for piece in cut(csv_records(data), per_slice):
        file = io.BytesIO(data)
        file.seek(piece.offset)
        span = Span(file, piece.end - piece.offset)
        again += delimited_records(span, piece.number, piece.offset, 10_000, PATH, ",")
    assert again == csv_records(data)


def test_a_quote_that_is_never_closed_stops_the_file() -> None:
    with pytest.raises(FormatError, match="is a quote not closed") as error:
        csv_records(b'a,b\n"c,d\n' + b"e,f\n" * 100, limit=50)
    assert error.value.offset == 4


def test_a_long_text_is_no_problem() -> None:
    text = "x" * 300_000
    assert csv_records(f'1,"{text}"\n'.encode(), limit=1_000_000)[0].cells == ["1", text]


def test_a_byte_that_is_not_text_spoils_its_own_row_only() -> None:
    good, bad, also_good = csv_records("é,1\n".encode() + b"\xff,2\n" + b"c,3\n")
    assert delimited_fields(good, ("a", "b")) == {"a": "é", "b": "1"}
    with pytest.raises(SampleError, match="not UTF-8: row 2 at byte 5"):
        delimited_fields(bad, ("a", "b"))
    assert delimited_fields(also_good, ("a", "b")) == {"a": "c", "b": "3"}


def test_a_row_with_other_columns_is_a_reject() -> None:
    (record,) = csv_records(b"1,2,3\n")
    with pytest.raises(SampleError, match="3 cells, the table has 2 columns"):
        delimited_fields(record, ("a", "b"))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz", "a.tsv.gz", "a.json.gz", "a.txt.gz"])
def test_blank_lines_without_end_are_an_error_that_names_the_file(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"\n" * 20_000_000))
    started_s = time.process_time()
    with pytest.raises(FormatError, match=r"a\..*: has more than 1,000,000 blank lines in a row"):
        list(open_table(path, name.split(".")[1], (), LIMIT).slices(1000))
    assert time.process_time() - started_s < 5  # without a limit, some 20


def test_white_space_in_json_is_passed_over_quickly(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b" " * 20_000_000 + b"[1," + b"\n" * 20_000_000 + b"2]"))
    started_s = time.process_time()
    (piece,) = open_table(path, "json", (), LIMIT).slices(1000)
    assert piece.num_rows == 2
    assert time.process_time() - started_s < 5
