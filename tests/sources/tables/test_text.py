from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.errors import FormatError
from shardmill.sources.tables.text import TextTable, open_table


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
    with pytest.raises(FormatError, match="is one JSON object, not rows"):
        opened(tmp_path / "a.json", content, "json")


def test_a_csv_begins_after_its_header(tmp_path: Path) -> None:
    table = opened(tmp_path / "a.csv", 'a,"b\nc"\n1,2\n', "csv")
    assert (table.columns, table.data_offset) == (("a", "b\nc"), 8)
    named = opened(tmp_path / "b.csv", "1,2\n", "csv", ("a", "b"))
    assert (named.columns, named.data_offset) == (("a", "b"), 0)
    assert [piece.num_rows for piece in table.slices(10)] == [1]
