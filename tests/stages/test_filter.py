from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_media import image

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.codec import digest, from_plain, to_plain
from shardmill.model.manifest import Manifest
from shardmill.running.runner import run_stage
from shardmill.shards.tar.index import open_tar_index
from shardmill.sources.filters import TextLength
from shardmill.sources.shapes.general import PairShape
from shardmill.sources.tables import TableSource
from shardmill.stages.filter import FilterSamples, _later_and_first
from shardmill.stages.ingest import Ingest


def run(stage: Any, out: Path, workers: int = 0) -> Manifest:
    report = run_stage(stage, out, workers=workers)
    assert report.manifest is not None, report
    return report.manifest


def keys_of(out: Path, manifest: Manifest) -> list[str]:
    paths = [out / shard.files["idx"].path for shard in manifest.shards]
    return [key for path in paths for key in open_tar_index(path).keys]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Ten samples in four shards; 3, 7 and 8 repeat 1, 9 repeats 0."""
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(image("JPEG", 40, 30, number))
    what = [(0, "a"), (1, "b"), (2, "b"), (1, "b"), (1, "a"), (0, "b"), (2, "a"), (1, "b")]
    what += [(1, "b"), (0, "a")]
    rows = [{"image": f"{n}.jpg", "text": text, "id": i} for i, (n, text) in enumerate(what)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = TableSource(files=(str(tmp_path / "rows.jsonl"),))
    run(Ingest(source=table, shape=PairShape(), per_shard=3), tmp_path / "shards")
    return tmp_path / "shards"


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_of_equal_samples_stays(shards: Path, tmp_path: Path, workers: int) -> None:
    stage = FilterSamples(input_dir=shards, drop_duplicates=True)
    manifest = run(stage, tmp_path / "out", workers)
    kept = [f"rows-{number:08d}" for number in (0, 1, 2, 4, 5, 6)]
    assert keys_of(tmp_path / "out", manifest) == kept
    assert manifest.skipped == {"exact duplicate": 4}
    lines = (tmp_path / "out" / "rejects" / "000002.jsonl").read_text().splitlines()
    assert [json.loads(line)["detail"] for line in lines] == ["of rows-00000001"] * 2


def test_filters_and_sizes_go_together(shards: Path, tmp_path: Path) -> None:
    stage = FilterSamples(input_dir=shards, filters=(TextLength(min_chars=2),))
    manifest = run(stage, tmp_path / "out")
    assert (manifest.num_kept, manifest.skipped) == (0, {"text too short": 10})
    stage = FilterSamples(input_dir=shards, filters=(TextLength(min_chars=1),))
    manifest = run(stage, tmp_path / "same")
    for shard in manifest.shards:
        new, old = (folder / shard.files["tar"].path for folder in (tmp_path / "same", shards))
        assert new.read_bytes() == old.read_bytes()
        new, old = (folder / shard.files["idx"].path for folder in (tmp_path / "same", shards))
        assert new.read_bytes() == old.read_bytes()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=40))
def test_repeats_are_those_of_a_dictionary(hashes: list[tuple[int, int]]) -> None:
    seen: dict[tuple[int, int], int] = {}
    expected = [(n, seen[h]) for n, h in enumerate(hashes) if seen.setdefault(h, n) != n]
    array = np.array(hashes, np.uint64).reshape(-1, 2)
    assert list(_later_and_first(array)) == expected


def test_what_is_not_finished_cannot_be_filtered(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError, match="is not a dataset of shardmill"):
        FilterSamples(input_dir=tmp_path, drop_duplicates=True).inputs()


def test_nothing_to_do_is_an_error(shards: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to filter"):
        FilterSamples(input_dir=shards)


def test_a_spec_survives_being_stored(shards: Path) -> None:
    stage = FilterSamples(input_dir=shards, filters=(TextLength(),), drop_duplicates=True)
    assert digest(from_plain(to_plain(stage))) == digest(stage)
