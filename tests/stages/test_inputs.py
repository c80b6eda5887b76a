"""Shards of samples as units: in order, up to the limit, with what identifies them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from samples_for_tests import store_samples

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.stages.inputs import (
    fingerprint_of,
    media_sizes,
    open_unit,
    sample_inputs,
    sample_units,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shown = Segment(kind="image", media="jpg")
    samples = [
        Sample(key=f"{n}", document=Document((shown,)), media={"jpg": b"x"}) for n in range(5)
    ]
    return store_samples(tmp_path / "in", samples, 2, MediaSize(width=3, height=4))


@pytest.mark.parametrize(
    ("limit", "counts"), [(None, [2, 2, 1]), (0, []), (2, [2]), (3, [2, 1]), (9, [2, 2, 1])]
)
def test_units_are_the_shards_up_to_the_limit(
    folder: Path, limit: int | None, counts: list[int]
) -> None:
    units = list(sample_units(folder, limit, {"text": "abc"}))
    assert [unit.num_samples for unit in units] == counts
    assert all(unit.input["text"] == "abc" for unit in units)
    assert all(("limit" in unit.input) == (limit is not None) for unit in units)


def test_a_unit_opens_its_shard_and_knows_the_sizes_of_media(folder: Path) -> None:
    unit = list(sample_units(folder, None))[1]
    with open_unit(folder, unit) as shard:
        assert list(shard.index.keys) == ["2", "3"]
        assert media_sizes(shard.index)(1)["jpg"] == MediaSize(width=3, height=4)


def test_the_fingerprint_covers_the_manifest_and_the_files_used(
    folder: Path, tmp_path: Path
) -> None:
    used = tmp_path / "used"
    used.write_bytes(b"12345")
    found = sample_inputs(folder, [used])
    assert list(found) == [str(folder / "manifest.json"), str(used)]
    assert found[str(used)] == [5, used.stat().st_mtime_ns]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError, match=str(tmp_path)):
        sample_inputs(tmp_path / "none")
    with pytest.raises(ConfigError, match="gone"):
        fingerprint_of([tmp_path / "gone"])


def test_a_manifest_that_is_written_anew_is_the_same_input(folder: Path) -> None:
    before = sample_inputs(folder)
    manifest = folder / "manifest.json"
    content = manifest.read_bytes()
    os.utime(manifest, ns=(1, 1))
    assert sample_inputs(folder) == before
    manifest.write_bytes(content.replace(b'"0', b'"1'))
    assert sample_inputs(folder) != before
