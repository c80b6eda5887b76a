"""Colours and orientation are right for every kind of image, and broken ones give reasons."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest

from shardmill.errors import SampleError
from shardmill.media import image as module
from shardmill.media.geometry import ResizeCrop, Square
from shardmill.media.image import Decoding, decode_image, image_size, resize_crop

Image = pytest.importorskip("PIL.Image")
PHOTOS = Path(__file__).parents[2] / "demo" / "data" / "photos"


def saved(image: Any, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def solid(mode: str, colour: Any, size: tuple[int, int] = (40, 24)) -> Any:
    return Image.new(mode, size, colour)


def middle(content: bytes, **options: Any) -> list[int]:
    pixels = decode_image(content, **options)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (24, 40, 3)
    return [int(value) for value in pixels[12, 20]]


def assert_near(found: list[int], expected: tuple[int, int, int], within: int = 2) -> None:
    assert all(abs(a - b) <= within for a, b in zip(found, expected)), (found, expected)


@pytest.mark.parametrize(
    ("mode", "colour", "format", "expected"),
    [
        ("RGB", (200, 30, 60), "JPEG", (200, 30, 60)),
        ("RGB", (200, 30, 60), "PNG", (200, 30, 60)),
        ("RGB", (200, 30, 60), "WEBP", (200, 30, 60)),
        ("RGB", (200, 30, 60), "BMP", (200, 30, 60)),
        ("RGB", (200, 30, 60), "TIFF", (200, 30, 60)),
        ("L", 99, "JPEG", (99, 99, 99)),
        ("L", 99, "PNG", (99, 99, 99)),
        ("1", 1, "PNG", (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), "JPEG", (255, 0, 0)),
        ("CMYK", (0, 255, 255, 0), "TIFF", (255, 0, 0)),
        ("RGBA", (200, 30, 60, 255), "PNG", (200, 30, 60)),
        ("RGBA", (200, 30, 60, 0), "PNG", (255, 255, 255)),
        ("RGBA", (0, 0, 0, 128), "PNG", (127, 127, 127)),
        ("RGBA", (0, 0, 0, 0), "WEBP", (255, 255, 255)),
        ("LA", (0, 128), "PNG", (127, 127, 127)),
        ("I;16", 0x8080, "PNG", (128, 128, 128)),
        ("I;16", 65535, "PNG", (255, 255, 255)),
    ],
)
def test_colours(mode: str, colour: Any, format: str, expected: tuple[int, int, int]) -> None:
    assert_near(middle(saved(solid(mode, colour), format)), expected, within=4)


def test_a_palette_with_a_transparent_colour_shows_white() -> None:
    image = solid("P", 1)
    image.putpalette([10, 20, 30, 200, 30, 60])
    assert_near(middle(saved(image, "PNG")), (200, 30, 60))
    assert_near(middle(saved(image, "PNG", transparency=1)), (255, 255, 255))


def test_an_animation_shows_its_first_frame() -> None:
    frames = [solid("RGB", (200, 30, 60)), solid("RGB", (0, 0, 255))]
    content = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert_near(middle(content), (200, 30, 60), within=4)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(orientation: int) -> None:
    ops = pytest.importorskip("PIL.ImageOps")
    pixels = np.zeros((32, 48, 3), np.uint8)
    pixels[:16, :16] = (255, 0, 0)
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(image, "JPEG", exif=exif, quality=95)
    expected = np.asarray(ops.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))
    assert np.array_equal(decode_image(content), expected)


def test_jpeg_pixels_are_those_of_pillow() -> None:
    for name in ("cat.jpg", "camera.jpg", "palace.jpg"):
        content = (PHOTOS / name).read_bytes()
        expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        assert np.array_equal(decode_image(content), expected)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "keep"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (17, 9), (40, 33)])
def test_every_kind_of_jpeg_has_the_pixels_of_pillow(
    size: tuple[int, int], progressive: bool, subsampling: str
) -> None:
    content = (PHOTOS / "cat.jpg").read_bytes()
    image = Image.open(io.BytesIO(content))
    if subsampling != "keep":
        content = saved(
            image.crop((90, 60, 90 + size[0], 60 + size[1])),
            "JPEG",
            subsampling=subsampling,
            progressive=progressive,
        )
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    assert np.array_equal(decode_image(content), expected)


NUMBERS = {"lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4}


def random_fits(num: int, seed: int) -> Iterator[tuple[np.ndarray, ResizeCrop]]:
    """Yield images of any shape, and parts of what they become when both sides change at will."""
    rng = np.random.default_rng(seed)
    for number in range(num):
        width, height, across, down = (max(1, int(x)) for x in np.exp(rng.uniform(0, 6, 4)))
        if number % 3 == 0:  # the shape stays, as in every crop
            across = max(1, width * down // height) if width < 50 * height else across
        left, top = int(rng.integers(0, across)), int(rng.integers(0, down))
        wide, tall = int(rng.integers(1, across - left + 1)), int(rng.integers(1, down - top + 1))
        resample: Any = rng.choice(list(NUMBERS))
        # Black and white overshoot most where filters have negative lobes.
        pixels = rng.integers(0, 2, (height, width, 3)).astype(np.uint8) * 255
        if number % 2:
            pixels = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
        yield pixels, ResizeCrop((across, down), left, top, wide, tall, resample)


@pytest.mark.parametrize("by", ["compiled", "pillow"])
def test_resized_pixels_are_those_of_pillow(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "pillow":
        monkeypatch.setattr(module, "_pillows_order", lambda: None)
    elif module._pillows_order() is None:
        pytest.skip("the C code is not compiled here")
    for pixels, fit in random_fits(120, seed=1):
        whole = Image.fromarray(pixels).resize(fit.resized, NUMBERS[fit.resample])
        box = (fit.left, fit.top, fit.left + fit.width, fit.top + fit.height)
        assert np.array_equal(resize_crop(pixels, fit), np.asarray(whole.crop(box))), fit


def test_a_pillow_that_resizes_in_another_way_does_it_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if module._resample is None:
        pytest.skip("the C code is not compiled here")
    resize = Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda self, size, *rest: resize(self, size, 0))
    module._pillows_order.cache_clear()
    try:
        assert module._pillows_order() is None
    finally:
        module._pillows_order.cache_clear()


def test_only_the_part_that_is_kept_is_computed() -> None:
    if module._pillows_order() is None:
        pytest.skip("the C code is not compiled here")
    strip = np.arange(3 * 40000, dtype=np.uint8).reshape(1, 40000, 3)
    fit = Square(max_aspect=None).fit(40000, 1)
    assert fit.resized == (40000 * 512, 512)
    middle = resize_crop(strip, fit)
    assert middle.shape == (512, 512, 3)
    near = np.asarray(Image.fromarray(strip[:, 19980:20020]).resize((40 * 512, 512), 1))
    assert np.array_equal(middle, near[:, 20 * 512 - 256 : 20 * 512 + 256])


@pytest.mark.parametrize("order", [None, module._never_first])
def test_an_image_that_cannot_be_held_on_the_way_is_refused(
    order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_pillows_order", lambda: order and module._resample and order)
    fit = Square(crop="none", resolution=8192, max_aspect=None).fit(1, 1 << 17)
    with pytest.raises(SampleError, match="too many pixels"):
        resize_crop(np.zeros((1 << 17, 1, 3), np.uint8), fit)


@pytest.mark.parametrize("ext", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("applied", ["apply", "ignore"])
def test_sizes_are_told_before_as_pixels_come(ext: str, orientation: int, applied: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(solid("RGB", 9), ext, exif=exif)
    decoding = Decoding(orientation=applied)
    pixels = decode_image(content, decoding=decoding)
    assert image_size(content, decoding) == (pixels.shape[1], pixels.shape[0])
    if applied == "ignore":
        stored = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        assert np.array_equal(pixels, stored)


def test_a_truncated_image_is_refused_or_tolerated() -> None:
    content = (PHOTOS / "cat.jpg").read_bytes()
    whole = decode_image(content)
    half = content[: len(content) // 2]
    with pytest.raises(SampleError, match="truncated image"):
        decode_image(half)
    tolerated = decode_image(half, allow_truncated=True)
    assert tolerated.shape == whole.shape
    assert np.array_equal(tolerated[:20], whole[:20])
    with pytest.raises(SampleError, match="truncated image"):
        decode_image(half)


def png_bomb() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an image"),
        (b"just text in a .jpg", "not an image"),
        (b"\xff\xd8\xff\xe0 no jpeg at all", "not an image"),
        (saved(solid("RGB", 0), "PNG")[:30], "broken image"),
        (saved(solid("RGB", 0), "PNG")[:45], "truncated image"),
        (png_bomb(), "too many pixels"),
    ],
)
def test_what_is_no_image_says_why(content: bytes, reason: str) -> None:
    with pytest.raises(SampleError, match=reason):
        decode_image(content)


def test_scans_and_tiles_without_end_are_refused_before_they_cost_time_or_memory() -> None:
    jpeg = saved(solid("RGB", "red"), "JPEG", progressive=True)
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    assert decode_image(jpeg[:-2] + scan * 3 + jpeg[-2:]).shape == (24, 40, 3)
    with pytest.raises(SampleError, match="scans, the limit"):
        decode_image(jpeg[:-2] + scan * 300 + jpeg[-2:])
    tags = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 322: 20000, 323: 20000, 324: 8, 325: 99}
    entries = b"".join(pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    packed = zlib.compress(bytes(1000)).ljust(100)
    tiff = b"II*\0" + pack("<I", 8 + len(packed)) + packed + pack("<H", len(tags)) + entries
    with pytest.raises(SampleError, match="in one tile"):
        decode_image(tiff + bytes(4))


def test_damage_anywhere_is_a_reason_and_never_a_crash() -> None:
    rng = np.random.default_rng(0)
    for name in ("cat.jpg", "coins.png", "coffee.webp"):
        content = bytearray((PHOTOS / name).read_bytes())
        for _ in range(15):
            damaged = bytearray(content)
            for at in rng.integers(0, len(content), 20):
                damaged[at] = int(rng.integers(0, 256))
            try:
                decode_image(bytes(damaged))
            except SampleError as error:
                assert error.reason
