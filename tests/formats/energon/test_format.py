"""The files of `.nv-meta`; that Energon reads them is proved with all formats."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from mixed_folder import Mixed

from shardmill.errors import ConfigError
from shardmill.formats.energon.format import EnergonFormat
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import open_samples
from shardmill.stages.check.folder import check_folder
from shardmill.stages.export import ExportShards


def export(source: Path, out: Path, **fields: Any) -> Path:
    report = run_stage(
        ExportShards(input_dir=source, format=EnergonFormat(**fields), num_shards=4), out, workers=0
    )
    assert report.complete, report.failures
    return out


def test_tables_name_every_sample_and_member(mixed: Mixed, tmp_path: Path) -> None:
    out = export(mixed.tokens, tmp_path / "out", samples=mixed.samples)
    assert check_folder(out).sound
    info = json.loads((out / ".nv-meta" / ".info.json").read_text())
    shards = open_manifest(out).shards
    assert info["shard_counts"] == {s.files["tar"].path: s.num_samples for s in shards}
    with sqlite3.connect(out / ".nv-meta" / "index.sqlite") as database:
        keys = [key for (key,) in database.execute("SELECT sample_key FROM samples")]
        assert keys == [row.key for row in mixed.rows]
        query = "SELECT content_byte_offset, content_byte_size FROM sample_parts p JOIN samples s"
        query += " USING (tar_file_id, sample_index) WHERE sample_key = ? AND part_name = ?"
        offset, size = database.execute(query, (mixed.rows[1].key, "0.jpg")).fetchone()
    samples = open_samples(out)
    number = samples.find(mixed.rows[1].key)
    assert number is not None
    tar = out / shards[samples.locate(number)[0]].files["tar"].path
    assert tar.read_bytes()[offset : offset + size] == samples.raw(number)["0.jpg"]


def test_the_last_tars_are_for_validation(mixed: Mixed, tmp_path: Path) -> None:
    out = export(mixed.tokens, tmp_path / "out", val=0.25, test=0.25)
    parts = json.loads((out / ".nv-meta" / "split.yaml").read_text())["split_parts"]
    assert [len(parts[name]) for name in ("train", "val", "test")] == [2, 1, 1]
    assert [*parts["train"], *parts["val"], *parts["test"]] == sorted(
        tar for tars in parts.values() for tar in tars
    )


def test_running_again_makes_the_same_bytes(mixed: Mixed, tmp_path: Path) -> None:
    first, second = (export(mixed.packs, tmp_path / name) for name in "ab")
    for path in sorted((first / ".nv-meta").iterdir()):
        assert path.read_bytes() == (second / ".nv-meta" / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"val": 0.8, "test": 0.3}, "shares"),
        ({"layout": "dashed"}, "dotted"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EnergonFormat(**fields)


def test_captioning_needs_pairs(mixed: Mixed, tmp_path: Path) -> None:
    for source, message in ((mixed.tokens, "holds tokens"), (mixed.samples, "not an image and a")):
        stage = ExportShards(input_dir=source, format=EnergonFormat(sample_type="captioning"))
        with pytest.raises(ConfigError, match=message):
            list(stage.units())
