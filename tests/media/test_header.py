from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_media import IMAGE_FORMATS, clip, encode, image, pixels
from PIL import Image, ImageOps

from shardmill.errors import ConfigError, SampleError
from shardmill.media.header import MediaHeader, probe

DEMO = Path(__file__).parents[2] / "demo" / "data"


gray = pixels(33, 21)[:, :, 0]


ENCODINGS = [
    ("JPEG", pixels(33, 21), {"progressive": True}),
    ("JPEG", pixels(33, 21), {"quality": 95, "subsampling": 0, "comment": b"x" * 3000}),
    ("JPEG", gray, {"icc_profile": b"p" * 200_000}),
    ("PNG", gray.astype(np.uint16) * 257, {}),
    ("PNG", gray > 100, {"dpi": (72, 72)}),
    ("PNG", np.dstack([pixels(33, 21), gray]), {}),
    ("WEBP", pixels(33, 21), {"lossless": True}),
    ("WEBP", np.dstack([pixels(33, 21), gray]), {}),
    ("WEBP", pixels(33, 21), {"icc_profile": b"p" * 99}),
    ("TIFF", gray.astype(np.uint16), {"compression": "tiff_lzw"}),
    ("TIFF", pixels(33, 21), {"tiffinfo": {270: "a description"}}),
    ("BMP", gray, {}),
]


def shown(content: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(content)) as opened:
        return ImageOps.exif_transpose(opened).size


def sides(medium: MediaHeader) -> tuple[int, int]:
    return medium.size.width, medium.size.height


@pytest.mark.parametrize("format", IMAGE_FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (640, 480), (17, 3000)])
def test_sizes_are_those_of_pillow(format: str, size: tuple[int, int]) -> None:
    content = image(format, *size)
    medium = probe("image", content)
    assert medium.ext == IMAGE_FORMATS[format]
    assert sides(medium) == shown(content) == size
    assert probe("image", memoryview(content)) == medium
    assert medium.size.num_frames == 1


@pytest.mark.parametrize(("format", "array", "options"), ENCODINGS)
def test_every_encoding_has_its_size(format: str, array: np.ndarray, options: dict) -> None:
    content = encode(format, array, **options)
    assert sides(probe("image", content)) == shown(content) == (33, 21)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_image_has_the_size_it_is_shown_in(format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    content = encode(format, pixels(33, 21), exif=exif)
    assert sides(probe("image", content)) == shown(content)


def test_a_png_may_say_at_its_end_how_it_is_turned() -> None:
    content = image("PNG", 33, 21)
    exif = Image.Exif()
    exif[274] = 5
    block = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = b"eXIf" + block
    chunk = len(block).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    turned = content[:-12] + chunk + content[-12:]
    assert sides(probe("image", turned)) == shown(turned) == (21, 33)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "AVIF"])
def test_a_moving_image_has_the_size_of_its_canvas(format: str) -> None:
    frames = [Image.fromarray(pixels(40, 30, seed)) for seed in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, format, save_all=True, append_images=frames[1:])
    assert sides(probe("image", buffer.getvalue())) == (40, 30)


def test_an_exif_block_that_is_broken_does_not_spoil_the_image() -> None:
    exif = Image.Exif()
    exif[274] = 6
    content = encode("JPEG", pixels(33, 21), exif=exif)
    at = content.index(b"Exif\0\0") + 6
    for broken in (b"XX", b"II*\0\xff\xff\xff\x7f"):
        spoiled = content[:at] + broken + content[at + len(broken) :]
        assert sides(probe("image", spoiled)) == (33, 21)


def test_an_image_without_width_is_none() -> None:
    content = image("PNG")
    with pytest.raises(SampleError, match="its header says 0 x 48 pixels"):
        probe("image", content[:16] + bytes(4) + content[20:])


@pytest.mark.parametrize("format", IMAGE_FORMATS)
def test_an_image_cut_anywhere_is_read_or_rejected(format: str) -> None:
    content = image(format)
    for length in range(0, min(len(content), 700), 3):
        try:
            assert sides(probe("image", content[:length])) == (64, 48)
        except SampleError as error:
            assert error.reason == "not an image"


@pytest.mark.parametrize("path", sorted((DEMO / "photos").iterdir()), ids=lambda path: path.name)
def test_real_photographs(path: Path) -> None:
    assert sides(probe("image", path.read_bytes())) == shown(path.read_bytes())


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
@pytest.mark.parametrize("content", [b"hello, I am a text\n" * 20, b"\0" * 500, b"<html>", b"x"])
def test_what_is_not_what_its_name_says_is_a_reject(kind: str, content: bytes) -> None:
    with pytest.raises(SampleError, match="not a"):
        probe(kind, content)


def test_an_image_is_no_video_and_a_video_no_image(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="not a video"):
        probe("video", image("JPEG"))
    with pytest.raises(SampleError, match="not an image"):
        probe("image", clip(tmp_path / "a.mp4", codec="libx264"))
    assert sides(probe("video", image("GIF"))) == (64, 48)
    with pytest.raises(ConfigError, match="a medium is one of"):
        probe("text", b"")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("clips")
    names = [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.avi", "mpeg4")]
    return [clip(folder / name, codec=codec) for name, codec in names]


def test_a_video_that_was_cut_off_is_told_from_what_is_none(clips: list) -> None:
    half = clips[0][: len(clips[0]) // 2]  # the index of an mp4 stands at its end
    with pytest.raises(SampleError, match=r"mp4 without a video track: .* cut off"):
        probe("video", half)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_headers_never_do_worse_than_a_reject(data: st.DataObject, clips: list) -> None:
    images = [("image", image(format)) for format in IMAGE_FORMATS]
    kind, content = data.draw(st.sampled_from([*images, *(("video", c) for c in clips)]))
    damaged = bytearray(content[: data.draw(st.integers(1, len(content)))])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(damaged), 2000) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
    try:
        size = probe(kind, bytes(damaged)).size
    except SampleError:
        return
    assert 0 < size.width < 1 << 31
    assert 0 <= size.num_frames < 1 << 31


def test_a_wav_tells_its_duration() -> None:
    rate = 8000
    form = b"fmt " + (16).to_bytes(4, "little") + b"\1\0\1\0" + rate.to_bytes(4, "little")
    form += (2 * rate).to_bytes(4, "little") + b"\2\0\x10\0"
    data = b"data" + (2 * rate * 3).to_bytes(4, "little") + bytes(2 * rate * 3)
    wav = b"RIFF" + (len(form) + len(data) + 4).to_bytes(4, "little") + b"WAVE" + form + data
    assert probe("audio", wav).ext == "wav"
    assert probe("audio", wav).size.duration_s == 3


@pytest.mark.parametrize(
    "head", [b"fLaC", b"OggS", b"ID3\4", b"\xff\xfb\x90", b"\0\0\0\x20ftypM4A "]
)
def test_sounds_are_known_by_their_first_bytes(head: bytes) -> None:
    assert probe("audio", head + bytes(500)).size.width == 0


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_a_refusal_quotes_no_bytes_of_what_it_refused(kind: str) -> None:
    with pytest.raises(SampleError) as caught:
        probe(kind, b"root:secret:19000:0:99999:7:::")
    assert "secret" not in str(caught.value)
    assert "30 bytes" in caught.value.detail
