from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardmill.sources.part import Row
from shardmill.sources.tables.table import NestedSource


def rows_of(tmp_path: Path, rows: list[Any], per_shard: int | None = None) -> list[Row]:
    path = tmp_path / "How2link.json"
    path.write_text(json.dumps(rows))
    source = NestedSource(files=(str(path),), name="how")
    with source.open() as read:
        parts = list(source.parts(per_shard))
        assert all(part.num_rows is None for part in parts)
        return [row for part in parts for row in read(part.input)]


@pytest.mark.parametrize("per_shard", [None, 1])
def test_each_element_is_a_row_with_the_fields_of_both(
    tmp_path: Path, per_shard: int | None
) -> None:
    rows = [
        {"video_id": "x", "clips": [{"caption": "a"}, {"caption": "b", "video_id": "own"}]},
        {"video_id": "y", "clips": [{"caption": "c"}]},
    ]
    found = rows_of(tmp_path, rows, per_shard)
    assert [(row.key, row.origin.row, row.fields) for row in found] == [
        ("How2link-00000000-000", "0.clips.0", {"video_id": "x", "caption": "a"}),
        ("How2link-00000000-001", "0.clips.1", {"video_id": "own", "caption": "b"}),
        ("How2link-00000001-000", "1.clips.0", {"video_id": "y", "caption": "c"}),
    ]


@pytest.mark.parametrize("row", [{}, {"clips": []}, {"clips": "x"}, {"clips": ["x"]}, 3])
def test_what_holds_no_rows_is_one_reject(tmp_path: Path, row: Any) -> None:
    found = rows_of(tmp_path, [row, {"clips": [{"a": 1}]}])
    assert [row.problem is None for row in found] == [False, True]
