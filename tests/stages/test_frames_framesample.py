from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sample_folder import write_sample_folder

from shardmill.errors import SampleError
from shardmill.model.sample import Document, Sample, Segment
from shardmill.shards.samples import open_samples
from shardmill.stages.frames import StoredSample
from shardmill.storage.blob import LocalBlob

MEGABYTE = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    segments = (Segment(kind="video", media="0.mp4"), Segment(kind="image", media="1.jpg"))
    sample = Sample(
        key="k",
        document=Document(segments),
        media={"0.mp4": b"v" * MEGABYTE, "1.jpg": b"image"},
        extra={"fps": 1, "media_info": {"0.mp4": {"fps": 2}}},
    )
    return write_sample_folder(tmp_path / "in", [[(sample, {})]])


def test_a_medium_is_read_only_when_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    read, view_all = LocalBlob.read, LocalBlob.view_all

    def counted(blob: LocalBlob, offset: int, length: int) -> bytes:
        asked.append(length)
        return read(blob, offset, length)

    def counted_all(blob: LocalBlob, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        asked.extend(length for _, length in ranges)
        return view_all(blob, ranges)

    monkeypatch.setattr(LocalBlob, "read", counted)
    monkeypatch.setattr(LocalBlob, "view_all", counted_all)
    stored = StoredSample.read(open_samples(folder).shard(0), 0)
    assert stored.part("0.mp4").num_bytes == MEGABYTE
    sample = stored.with_media(without={"0.mp4"})
    assert {name: bytes(content) for name, content in sample.media.items()} == {"1.jpg": b"image"}
    assert sum(asked) < 1000
    assert set(stored.with_media().media) == {"0.mp4", "1.jpg"}


def test_what_a_row_said_of_a_medium_comes_before_what_it_said_of_all(folder: Path) -> None:
    stored = StoredSample.read(open_samples(folder).shard(0), 0)
    assert stored.info("0.mp4")["fps"] == 2
    assert stored.info("1.jpg")["fps"] == 1


def test_a_medium_that_is_not_there_is_a_reject(folder: Path) -> None:
    with pytest.raises(SampleError, match="missing media"):
        StoredSample.read(open_samples(folder).shard(0), 0).part("2.mp4")
