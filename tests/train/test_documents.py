"""Rows with the images of their placeholders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from make_media import encode
from sample_folder import write_sample_folder
from token_folder import write_token_folder

from shardmill.errors import ConfigError, Damaged, SampleError
from shardmill.media.geometry import Buckets
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.train.documents import ImageReader

GREY = (30, 90, 150)


def span(name: str, position: int, kind: str = "image") -> MediaSpan:
    return MediaSpan(name=name, kind=kind, position=position, num_tokens=2)


def row(key: str, *media: MediaSpan) -> TokenRow:
    return TokenRow(key=key, ids=np.arange(1, 12), media=media)


def reader_of(tmp_path: Path, rows: list[TokenRow], members: dict[str, bytes]) -> ImageReader:
    document = Document(tuple(Segment(kind="image", media=name) for name in members))
    samples = [(Sample(key="k", document=document, media=members), {})]
    tokens = write_token_folder(tmp_path / "tokens", [rows])
    return ImageReader.open(tokens, write_sample_folder(tmp_path / "samples", [samples]), 8)


def grey(level: int, width: int = 20, height: int = 10) -> bytes:
    return encode("PNG", np.full((height, width, 3), level, np.uint8))


def test_images_come_in_the_order_of_their_placeholders(tmp_path: Path) -> None:
    members = {f"{n}.png": grey(level) for n, level in enumerate(GREY)}
    rows = [row("k", span("2.png", 1), span("0.png", 4)), row("k~+1", span("1.png", 1)), row("x")]
    reader = reader_of(tmp_path, rows, members)
    values = reader.read(0).tensors["pixel_values"]
    assert tuple(values.shape) == (2, 3, 8, 8)
    assert values[:, 0, 0, 0].tolist() == [150, 30]
    assert reader.read(1).tensors["pixel_values"][0, 0, 0, 0] == 90
    assert reader.read(2).tensors == {}
    assert len(reader) == 3 and "row 1" in reader.describe(1)
    assert len(reader.shards) == 2
    reader.prefetch([0, 1])


def test_an_image_whose_bytes_changed_is_noticed(tmp_path: Path) -> None:
    rows = [row("k", span("0.png", 1)), row("x")]
    reader = reader_of(tmp_path, rows, {"0.png": grey(30)})
    reader.verify(0)
    reader.verify(1)
    (tar,) = (tmp_path / "samples" / "shards").glob("*.tar")
    whole = tar.read_bytes()
    at = whole.index(b"\x89PNG") + 40
    tar.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(
        Damaged, match=r"\.tar: sample 0, 'k', at the bytes 512 to \d+.*shardmill check"
    ):
        reader.verify(0)
    reader.verify(1)


def test_the_middle_is_kept_and_nothing_is_squashed(tmp_path: Path) -> None:
    pixels = np.zeros((10, 40, 3), np.uint8)
    pixels[:, 15:25] = 200  # the middle square
    reader = reader_of(tmp_path, [row("k", span("png", 1))], {"png": encode("PNG", pixels)})
    values = reader.read(0).tensors["pixel_values"]
    assert int(values[0, :, :, 2:6].min()) > 190


@pytest.mark.parametrize(
    ("medium", "members", "says"),
    [
        (span("7.png", 1), {"0.png": grey(1)}, "missing media"),
        (span("0.png", 1), {"0.png": b"text"}, "not an image"),
        (span("0.mp4", 1, "video"), {"0.mp4": b"x"}, "cannot read video"),
    ],
)
def test_what_cannot_be_shown_is_a_reject(
    tmp_path: Path, medium: MediaSpan, members: dict[str, Any], says: str
) -> None:
    reader = reader_of(tmp_path, [row("k", medium)], members)
    with pytest.raises(SampleError, match=says):
        reader.read(0)


def test_a_row_of_another_data_set_is_named(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, [row("other", span("png", 1))], {"png": grey(1)})
    with pytest.raises(SampleError, match="other"):
        reader.read(0)


def test_one_size_is_needed(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, [row("k")], {"png": grey(1)})
    with pytest.raises(ConfigError, match="one size"):
        ImageReader(reader.tokens, reader.samples, Buckets())
