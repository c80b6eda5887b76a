from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import FormatError
from shardmill.sources.guess import source_from_input
from shardmill.sources.source import Row
from shardmill.sources.tables import ColumnsSource

WEBVID = {
    "image": {str(n): f"000001_000050/{n}.mp4" for n in range(7)},
    "value": {str(n): f"caption {n}" for n in range(7)},
}


def rows_of(path: Path, per_shard: int | None) -> list[Row]:
    source = ColumnsSource(files=(str(path),), name="webvid")
    with source.open() as read:
        rows = []
        for part in source.parts(per_shard):
            found = list(read(part.input))
            assert len(found) == part.num_rows
            rows += found
        return rows


@pytest.mark.parametrize("per_shard", [None, 1, 3, 7])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_rows_come_in_order_however_they_are_cut(
    tmp_path: Path, per_shard: int | None, suffix: str
) -> None:
    import gzip

    path = tmp_path / f"webvid{suffix}"
    raw = json.dumps(WEBVID).encode()
    path.write_bytes(gzip.compress(raw) if suffix.endswith("gz") else raw)
    rows = rows_of(path, per_shard)
    assert [row.fields for row in rows] == [
        {"image": f"000001_000050/{n}.mp4", "value": f"caption {n}"} for n in range(7)
    ]
    assert [row.key for row in rows] == [f"webvid-{n:08d}" for n in range(7)]
    assert rows[0].media_dir == str(tmp_path)


def test_keys_that_differ_are_rejects(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"image": {"0": "a", "1": "b"}, "value": {"0": "x", "2": "y"}}))
    problems = [row.problem for row in rows_of(path, None)]
    assert problems[0] is None and "columns do not match" in str(problems[1])


def test_columns_of_different_lengths_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"image": ["a", "b"], "value": ["x"]}))
    with pytest.raises(FormatError, match="image has 2, value has 1"):
        list(ColumnsSource(files=(str(path),)).parts(None))


def test_a_file_that_changed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(WEBVID))
    source = ColumnsSource(files=(str(path),))
    (part,) = source.parts(None)
    path.write_bytes(path.read_bytes() + b" ")
    with source.open() as read, pytest.raises(FormatError, match="was changed"):
        list(read(part.input))


def test_the_kind_is_named_by_the_user(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(WEBVID))
    options: dict[str, Any] = {"media_root": "s3://bucket/videos"}
    source = source_from_input([str(path)], kind="columns", **options)
    assert isinstance(source, ColumnsSource) and source.media_root == "s3://bucket/videos"


@given(st.integers(0, 200), st.integers(0, 40), st.binary(max_size=6))
def test_any_bytes_are_rows_or_an_error_that_names_the_file(
    tmp_path_factory: pytest.TempPathFactory, at: int, length: int, new: bytes
) -> None:
    raw = json.dumps(WEBVID).encode()
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(raw[:at] + new + raw[at + length :])
    try:
        rows = rows_of(path, 3)
    except FormatError as error:
        assert "any.json" in str(error)
    else:
        assert all(row.problem is not None or row.fields for row in rows)
