from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import FormatError, SampleError
from shardmill.sources.tables.records import Record, cut, delimited_fields, delimited_records
from shardmill.sources.tables.stream import Span

PATH = Path("rows.csv")
cells = st.text(st.sampled_from('ab,"\n\r é\t;'), max_size=8)
tables = st.lists(st.lists(cells, min_size=1, max_size=3), max_size=12)


def records_of(data: bytes, limit: int = 10_000, delimiter: str = ",") -> list[Record]:
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
    found = records_of(data, delimiter=delimiter)
    assert [record.cells for record in found] == rows
    assert b"".join(record.raw for record in found) == data


@given(st.lists(st.text(st.sampled_from('ab,"\n '), max_size=12), max_size=12))
def test_untidy_text_is_cut_as_the_csv_module_cuts_it(lines: list[str]) -> None:
    data = "\n".join(lines).encode()
    naive = [row for row in csv.reader(io.StringIO(data.decode(), newline="")) if row]
    assert [record.cells for record in records_of(data)] == naive


@given(tables, st.integers(1, 4))
def test_slices_give_the_same_records(rows: list[list[str]], per_slice: int) -> None:
    data = written(rows, ",")
    again = []
    for piece in cut(records_of(data), per_slice):
        file = io.BytesIO(data)
        file.seek(piece.offset)
        span = Span(file, piece.end - piece.offset)
        again += delimited_records(span, piece.number, piece.offset, 10_000, PATH, ",")
    assert again == records_of(data)


def test_a_quote_that_is_never_closed_stops_the_file() -> None:
    with pytest.raises(FormatError, match="is a quote not closed") as error:
        records_of(b'a,b\n"c,d\n' + b"e,f\n" * 100, limit=50)
    assert error.value.offset == 4


def test_a_long_text_is_no_problem() -> None:
    text = "x" * 300_000
    assert records_of(f'1,"{text}"\n'.encode(), limit=1_000_000)[0].cells == ["1", text]


def test_a_byte_that_is_not_text_spoils_its_own_row_only() -> None:
    good, bad, also_good = records_of("é,1\n".encode() + b"\xff,2\n" + b"c,3\n")
    assert delimited_fields(good, ("a", "b")) == {"a": "é", "b": "1"}
    with pytest.raises(SampleError, match="not UTF-8: row 2 at byte 5"):
        delimited_fields(bad, ("a", "b"))
    assert delimited_fields(also_good, ("a", "b")) == {"a": "c", "b": "3"}


def test_a_row_with_other_columns_is_a_reject() -> None:
    (record,) = records_of(b"1,2,3\n")
    with pytest.raises(SampleError, match="3 cells, the table has 2 columns"):
        delimited_fields(record, ("a", "b"))
