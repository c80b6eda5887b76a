"""Liquid's map-style rows: lines of JSON with codes, or with the files of images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
from coded_folder import codes_of, make_pair, make_text, store_coded

from shardmill.formats.liquid.pairs import LiquidPairsFormat
from shardmill.run.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.stages.check.folder import check_folder
from shardmill.stages.export import Export

SAMPLES = [
    make_text(f"t{n}", f"Text {n}") if n % 4 == 3 else make_pair(f"p{n}", f"{n}", bytes([n] * 9))
    for n in range(10)
]


def run(out: Path, **fields: Any) -> list[dict[str, Any]]:
    stage = Export(format=LiquidPairsFormat(), **fields)
    report = run_stage(stage, out, workers=0)
    assert not report.failures and report.complete, report.failures
    paths = [out / shard.files["jsonl"].path for shard in open_manifest(out).shards]
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_codes_are_lists_of_numbers(tmp_path: Path) -> None:
    samples, codes = store_coded(tmp_path, SAMPLES, per_shard=4)
    rows = run(tmp_path / "out", input_dir=samples, codes_dir=codes)
    for row, sample in zip(rows, SAMPLES, strict=True):
        wanted: dict[str, Any] = {"data_type": "text_pretrain", "text": sample.document.text}
        if sample.media:
            wanted["data_type"] = "image_text"
            wanted["vq_code"] = codes_of(sample.key).reshape(-1).tolist()
        assert row == wanted
    found = datasets.load_dataset(
        str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(found) == 10


def test_images_lie_beside_the_lines(tmp_path: Path) -> None:
    samples, _ = store_coded(tmp_path, SAMPLES, per_shard=4)
    rows = run(tmp_path / "out", input_dir=samples, num_shards=2)
    for row, sample in zip(rows, SAMPLES, strict=True):
        if sample.media:
            image = tmp_path / "out" / "shards" / row["image_path"]
            assert image.read_bytes() == sample.media["jpg"]
        else:
            assert "image_path" not in row
    assert check_folder(tmp_path / "out").sound
