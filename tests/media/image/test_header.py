from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from make_media import IMAGE_FORMATS, encode, image, pixels
from PIL import Image, ImageOps

from shardmill.errors import SampleError
from shardmill.media.sizes import MediaHeader, probe

DEMO = Path(__file__).parents[3] / "demo" / "data"


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
