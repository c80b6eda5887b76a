"""Shards of samples as units: in order, up to the limit, with what identifies them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists
from mixed_folder import make_mixed
from samples_for_tests import store_samples

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.model.stage import Tally
from shardmill.shards.ledger import open_manifest
from shardmill.stages.inputs import (
    _observe,
    contents_of,
    count_sample,
    count_shard,
    media_sizes,
    open_unit,
    sample_inputs,
    sample_units,
    tokens_behind,
)
from shardmill.stages.tokenize import count_row
from shardmill.storage import objects


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
    assert list(found) == [str(folder / "manifest.json"), "used"]
    # Neither place nor time of a file that belongs to the settings counts, only what it holds.
    moved = tmp_path / "elsewhere" / "used"
    moved.parent.mkdir()
    used.rename(moved)
    os.utime(moved, ns=(1, 1))
    assert sample_inputs(folder, [moved]) == found
    moved.write_bytes(b"12346")
    assert sample_inputs(folder, [moved]) != found


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError, match=str(tmp_path)):
        sample_inputs(tmp_path / "none")
    with pytest.raises(ConfigError, match="gone"):
        contents_of([tmp_path / "gone"])


def test_a_manifest_that_is_written_anew_is_the_same_input(folder: Path) -> None:
    before = sample_inputs(folder)
    manifest = folder / "manifest.json"
    content = manifest.read_bytes()
    os.utime(manifest, ns=(1, 1))
    assert sample_inputs(folder) == before
    manifest.write_bytes(content.replace(b'"0', b'"1'))
    assert sample_inputs(folder) != before


def test_what_is_counted() -> None:
    tally = Tally()
    origin = Origin(source="web", path="p", row=0)
    both = (
        Segment(kind="image", media="0.jpg"),
        Segment(kind="image", media="1.jpg"),
        Segment(kind="video", media="2.mp4"),
    )
    media = dict.fromkeys(("0.jpg", "1.jpg", "2.mp4"), b"x")
    sizes = {
        "0.jpg": MediaSize(width=10, height=10),
        "1.jpg": MediaSize(width=10, height=10),
        "2.mp4": MediaSize(width=20, height=10, duration_s=3.4),
    }
    count_sample(tally, Sample(key="a", document=Document(both), media=media, origin=origin), sizes)
    text = Document((Segment(kind="text", text="words"),))
    count_sample(tally, Sample(key="b", document=text, origin=origin), {})
    assert dict(tally.stats) == {
        "samples|with images": 1,
        "media|images": 2,
        "samples|with videos": 1,
        "media|videos": 1,
        "missing|text": 1,
        "source|web": 2,
        "text chars|<=0": 1,
        "text chars|<=8": 1,
        "text chars|sum": 5,
        "pixels|<=128": 2,
        "pixels|<=256": 1,
        "pixels|sum": 400,
        "video seconds|<=4": 1,
        "video seconds|sum": 3,
        "samples|text only": 1,
    }


@given(lists(integers(0, 1 << 40), min_size=1, max_size=20))
def test_many_values_are_observed_as_one_by_one(values: list[int]) -> None:
    one_by_one, at_once = Tally(), Tally()
    for value in values:
        one_by_one.observe("x", value)
    _observe(at_once, "x", np.array(values))
    assert at_once.stats == one_by_one.stats


def test_tokens_and_codes_are_counted_as_their_stages_do(tmp_path: Path) -> None:
    mixed = make_mixed(tmp_path, 8)
    found, wanted = Tally(), Tally()
    for shard in open_manifest(mixed.tokens).shards:
        count_shard(found, {role: mixed.tokens / e.path for role, e in shard.files.items()})
    for row in mixed.rows:
        count_row(wanted, row)
    assert found.stats == wanted.stats
    codes = Tally()
    for shard in open_manifest(mixed.codes).shards:
        count_shard(codes, {role: mixed.codes / e.path for role, e in shard.files.items()})
    assert codes.stats == {"images": 6, "codes": 6 * 1024, "code grid|32x32": 6}


def test_a_manifest_names_no_server_that_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(objects, "look", asked.append)
    monkeypatch.setattr(objects, "list_all", lambda url, **_: asked.append(url))
    manifest = open_manifest(folder)
    for place in ("http://10.0.0.5/tokens", "s3://bucket/tokens", "../../tokens"):
        hostile = replace(manifest, content="packs", reads={"tokens": (place,)})
        assert tokens_behind(folder, hostile) == (folder, hostile)
    assert asked == []
