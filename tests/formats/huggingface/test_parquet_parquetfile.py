"""Files of ready pages, read by Arrow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.formats.huggingface.parquet import (
    Chunk,
    Column,
    list_levels,
    plain_numbers,
    runs,
    value_levels,
    write_parquet,
)

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("ids", pa.list_(pa.uint16())),
        pa.field("mask", pa.list_(pa.uint8())),
        pa.field("labels", pa.list_(pa.int32())),
    ],
    metadata={"huggingface": "{}"},
)
COLUMNS = [
    Column("key", "string", is_list=False),
    Column("ids", "uint16"),
    Column("mask", "uint8"),
    Column("labels", "int32"),
]


def group_of(lists: list[list[int]]) -> tuple[int, list[Chunk]]:
    """Return a row group of these lists, as ids, as labels below zero and as a mask."""
    num_levels, levels = list_levels(np.cumsum([0, *map(len, lists)]))
    ids = np.array([number for row in lists for number in row], np.uint16)
    keys = b"".join(len(str(row)).to_bytes(4, "little") + str(row).encode() for row in lists)
    return len(lists), [
        Chunk(len(lists), (value_levels(len(lists)), keys)),
        Chunk(num_levels, (levels, bytes([16]), *plain_numbers(ids)), np.arange(1000)),
        Chunk(num_levels, (levels, b"\1", runs(ids % 2, np.ones_like(ids))), np.arange(2)),
        Chunk(num_levels, (levels, -ids.astype(np.int32))),
    ]


LISTS = st.lists(st.lists(st.integers(0, 999), max_size=20), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(st.lists(LISTS, max_size=17))
def test_arrow_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[list[int]]]
) -> None:
    path = tmp_path_factory.mktemp("x") / "x.parquet"
    write_parquet(path, COLUMNS, SCHEMA, map(group_of, groups))
    lists = [row for group in groups for row in group]
    found = pyarrow.parquet.ParquetFile(path)
    assert found.metadata.num_row_groups == len(groups)
    assert found.metadata.num_rows == len(lists)
    table = found.read()
    assert table.schema.equals(SCHEMA)
    assert table.schema.metadata == SCHEMA.metadata
    table.validate(full=True)
    assert table.to_pydict() == {
        "key": [str(row) for row in lists],
        "ids": lists,
        "mask": [[number % 2 for number in row] for row in lists],
        "labels": [[-number for number in row] for row in lists],
    }


def test_groups_and_columns_are_read_by_themselves(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x", COLUMNS, SCHEMA, map(group_of, [[[1], [2, 3]], [[]], [[4] * 99]]))
    found = pyarrow.parquet.ParquetFile(tmp_path / "x")
    assert found.read_row_group(2, ["ids"]).to_pydict() == {"ids": [[4] * 99]}
    assert found.read_row_group(1).to_pydict()["labels"] == [[]]
    column = found.metadata.row_group(0).column(1)
    assert (column.compression, column.physical_type) == ("UNCOMPRESSED", "INT32")
    assert "RLE_DICTIONARY" in column.encodings
    # A header begins with the type of its page: field 1, an i32, of a dictionary 2 and of data 0.
    content = (tmp_path / "x").read_bytes()
    assert content[column.dictionary_page_offset :][:2] == b"\x15\x04"
    assert content[column.data_page_offset :][:2] == b"\x15\x00"


def test_types_are_those_that_arrow_writes(tmp_path: Path) -> None:
    """Readers that do not know Arrow's schema go by the types of parquet."""
    write_parquet(tmp_path / "ours", COLUMNS, SCHEMA, [group_of([[1]])])
    pyarrow.parquet.write_table(SCHEMA.empty_table(), tmp_path / "theirs")
    ours, theirs = (
        pyarrow.parquet.ParquetFile(tmp_path / name).schema for name in ("ours", "theirs")
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.path, mine.physical_type) == (other.path, other.physical_type)
        assert mine.converted_type == other.converted_type
        assert mine.max_definition_level == other.max_definition_level
        assert mine.max_repetition_level == other.max_repetition_level
