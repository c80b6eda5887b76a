"""Files of Hugging Face: what `datasets` itself writes of the same rows, but for the order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from shardmill.formats.huggingface.tables import (
    describe_arrow,
    describe_files,
    schema_of,
    sequence,
    value,
    write_table,
)
from shardmill.model.manifest import FileEntry, Manifest, ShardEntry

FEATURES = {"key": value("string"), "ids": sequence("uint16"), "mask": sequence("uint8")}
ROWS: dict[str, list[Any]] = {
    "key": ["a", "b", "c"],
    "ids": [[1, 65_535], [], [7] * 500],
    "mask": [[0, 1], [], [1] * 500],
}


def write(path: Path, kind: Any) -> None:
    schema = schema_of(FEATURES)
    batch = pa.record_batch([pa.array(ROWS[f.name], f.type) for f in schema], schema=schema)
    write_table(path, kind, schema, [batch.slice(0, 2), batch.slice(2)])


def manifest_of(names: list[str]) -> Manifest:
    shards = [ShardEntry(n, 3, {"arrow": FileEntry(f"shards/{n}.arrow", 1, "")}) for n in names]
    return Manifest(
        content="export",
        stage={},
        stage_digest="",
        units_digest="0123456789abcdef0123",
        num_in=3,
        num_kept=3,
        skipped={},
        stats={},
        shards=tuple(shards),
    )


def test_an_arrow_folder_is_described_as_datasets_does(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    write(tmp_path / "shards" / "00000.arrow", "arrow")
    describe_arrow(tmp_path, manifest_of(["00000"]), FEATURES)
    ours = datasets.load_from_disk(str(tmp_path))
    assert ours.to_dict() == ROWS
    ours.save_to_disk(str(tmp_path / "theirs"))
    for name in ("state.json", "dataset_info.json"):
        mine = json.loads((tmp_path / name).read_text())
        theirs = json.loads((tmp_path / "theirs" / name).read_text())
        assert mine.keys() == theirs.keys()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_the_same_rows_are_the_same_bytes(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, kind)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_parquet_holds_the_rows(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", "parquet")
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pydict() == ROWS


def test_the_card_names_the_files(tmp_path: Path) -> None:
    describe_files(tmp_path, "parquet")
    assert "    path: shards/*.parquet\n" in (tmp_path / "README.md").read_text()
