"""Colours and orientation are right for every kind of image, and broken ones give reasons."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest

from shardmill.errors import SampleError
from shardmill.media.geometry import Square
from shardmill.media.image import decode_image, resampler, resize_crop

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


def test_resizing_is_pillows_lanczos_up_to_rounding() -> None:
    pixels = decode_image((PHOTOS / "palace.jpg").read_bytes())
    fit = Square(resolution=256).fit(pixels.shape[1], pixels.shape[0])
    box = (fit.left, fit.top, fit.left + fit.width, fit.top + fit.height)
    resized = Image.fromarray(pixels).resize(fit.resized, Image.Resampling.LANCZOS)
    expected = np.asarray(resized.crop(box)).astype(int)
    found = resize_crop(pixels, fit)
    assert found.shape == (256, 256, 3)
    assert np.abs(found - expected).max() <= 1
    assert (found != expected).mean() < 0.02


def lanczos_weights(num_in: int, num_out: int) -> np.ndarray:
    """Return [out, in]: Lanczos of three lobes, as wide as the pixels that shrink, in float64."""
    scale = num_in / num_out
    width = max(scale, 1.0)
    centres = (np.arange(num_out)[:, None] + 0.5) * scale
    x = (np.arange(num_in)[None, :] + 0.5 - centres) / width
    weights = np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)
    return weights / weights.sum(1, keepdims=True)


def exact_lanczos(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the image resized across, rounded to bytes, then down, as every library does it."""
    values = pixels.astype(np.float64)
    for axis, num_out in ((1, size[0]), (0, size[1])):
        weights = lanczos_weights(values.shape[axis], num_out)
        values = np.moveaxis(np.tensordot(weights, values, (1, axis)), 0, axis)
        values = np.clip(np.floor(values + 0.5), 0, 255)
    return values


@pytest.mark.parametrize("by", ["torch", "pillow"])
@pytest.mark.parametrize(
    ("size", "side"), [((97, 64), 32), ((64, 97), 48), ((37, 30), 32), ((40, 40), 64)]
)
def test_pixels_are_those_of_the_formula_whoever_resizes(
    size: tuple[int, int], side: int, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "pillow":
        monkeypatch.setattr("shardmill.media.image._torch_lanczos", lambda: None)
    elif resampler() != "torch":
        pytest.skip("this torch has no Lanczos")
    width, height = size
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    photo = np.asarray(
        Image.open(PHOTOS / "cat.jpg").convert("RGB").crop((90, 60, 90 + width, 60 + height))
    )
    fit = Square(resolution=side).fit(width, height)
    for pixels in (noise, photo):
        expected = exact_lanczos(pixels, fit.resized)
        cut = expected[fit.top : fit.top + fit.height, fit.left : fit.left + fit.width]
        # torch rounds its weights, which adds up where an image grows: few pixels are off by two.
        within = 2 if by == "torch" and side > min(size) else 1
        assert np.abs(resize_crop(pixels, fit) - cut).max() <= within


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
