"""The tars behind a folder: its own, or those its indexes point at."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples_for_tests import store_samples
from tars import tar_bytes

from shardmill.errors import ShardmillError
from shardmill.formats.webdataset.wids import tar_places
from shardmill.model.sample import Document, Sample, Segment
from shardmill.run.runner import run_stage
from shardmill.stages.index import IndexTars


def test_own_tars_are_inside(tmp_path: Path) -> None:
    text = Document((Segment(kind="text", text="x"),))
    store_samples(
        tmp_path / "x", [Sample(key=f"{i}", document=text) for i in range(3)], per_shard=2
    )
    places = list(tar_places(tmp_path / "x"))
    assert [(place.num_samples, place.is_inside) for place in places] == [(2, True), (1, True)]
    for place in places:
        assert Path(place.absolute(tmp_path / "x")).stat().st_size == place.num_bytes


def test_foreign_tars_are_named_as_their_index_does(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_bytes([("1.txt", b"")]))
    run_stage(IndexTars(tars=(f"{tmp_path}/a.tar",)), tmp_path / "out", workers=0)
    (place,) = tar_places(tmp_path / "out")
    assert place.url == place.absolute(tmp_path / "out") == f"{tmp_path}/a.tar"


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError):
        list(tar_places(tmp_path))
