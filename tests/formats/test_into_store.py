"""Exports into a real store: each format whole, or refused before the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lossy_export import lossy_export
from mixed_folder import Mixed

from shardmill.errors import ConfigError
from shardmill.model.codec import build
from shardmill.plugins import FORMATS
from shardmill.running.runner import run_stage
from shardmill.storage.path import UrlPath

WHOLE: list[dict[str, Any]] = [
    {"kind": "hf"},
    {"kind": "hf", "files": "parquet"},
    {"kind": "webdataset"},
    {"kind": "energon"},
    {"kind": "mds"},
    {"kind": "megatron"},
    {"kind": "litdata"},
]
IN_PLACE: list[dict[str, Any]] = [
    {"kind": "megatron", "prefix": "all"},
    {"kind": "tensordict", "length": 4096, "pad_id": 0},
]


def export(mixed: Mixed, out: Path, plain: dict[str, Any]) -> None:
    stage = lossy_export(input_dir=mixed.tokens, format=build(FORMATS, plain))
    report = run_stage(stage, out, workers=0)
    assert report.complete, report.failures


def files_of(folder: Path, part: str) -> dict[str, bytes]:
    found = {path.name: path for path in (folder / part).iterdir()}
    # A database has the same rows, and the time of its making in its head.
    return {name: b"" if "sqlite" in name else path.read_bytes() for name, path in found.items()}


@pytest.mark.parametrize("plain", WHOLE, ids=lambda plain: plain.get("files", plain["kind"]))
def test_a_store_gets_what_a_folder_gets(
    mixed: Mixed, tmp_path: Path, store_url: str, plain: dict[str, Any]
) -> None:
    export(mixed, tmp_path / "out", plain)
    export(mixed, UrlPath(f"{store_url}/out"), plain)
    for part in ("shards", ".nv-meta") if plain["kind"] == "energon" else ("shards",):
        there = files_of(UrlPath(f"{store_url}/out"), part)
        assert there == files_of(tmp_path / "out", part)
        assert there


@pytest.mark.parametrize("plain", IN_PLACE, ids=lambda plain: plain["kind"])
def test_files_that_are_written_in_place_are_refused(
    mixed: Mixed, store_url: str, plain: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="piece by piece"):
        export(mixed, UrlPath(f"{store_url}/out"), plain)
    assert not UrlPath(f"{store_url}/out/manifest.json").exists()
