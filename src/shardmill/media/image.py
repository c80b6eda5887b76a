"""Images to pixels with the right colours: RGB bytes [height, width, 3], brought to size.

What an image means where programs differ, `Decoding` says: by default EXIF orientation is applied,
transparency is blended on white and 16 bits are scaled to 8. CMYK, palettes and grey become RGB, of
an animation the first frame is taken. JPEG goes through libjpeg-turbo directly, everything else and
everything odd through Pillow; both give equal pixels. Scaled JPEG decoding is not used: it is off
by far more than rounding (33 to 41 dB).

Resizing gives the pixels of the Pillow that is installed: by `_resample.c`, which is ten times as
fast, if that gives them on a trial, else by Pillow.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError, foreign, need
from shardmill.media.geometry import Resample, ResizeCrop
from shardmill.media.header import probe

try:
    from shardmill.media import _resample  # type: ignore[attr-defined, unused-ignore]
except ImportError:
    _resample = None

Pixels = NDArray[np.uint8]
Content = bytes | memoryview
# (width, height) of an image -> whether Pillow resizes it down before it does so across.
Order: TypeAlias = Callable[[tuple[int, int], tuple[int, int]], bool]

MAX_PIXELS = 1 << 27  # 384 MB as RGB
# A progressive JPEG has about ten; each costs as much time as all pixels, and hardly a byte.
MAX_SCANS = 256
START_OF_SCAN = b"\xff\xda"  # inside of a scan, a zero follows each 0xff
TILE_TAGS = (322, 323)  # width and height of the tiles of a TIFF
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF")
ORIENTATION_TAG = 0x0112
EXIF_MARK = b"Exif\0\0"
HEADER_BYTES = 1 << 16  # EXIF is one segment of at most 64 KB, and comes early
FILTERS: dict[Resample, int] = {"lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4}  # of Pillow


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """What becomes of what RGB has no place for.

    `alpha`: "white" blends transparency on white, "drop" takes the colours under it.
    `depth`: "scale" brings 16 bits to 8, "clip" cuts off above 255, as Pillow's convert("RGB").
    `orientation`: "apply" turns an image as its EXIF says, "ignore" takes it as it is stored.
    """

    alpha: Literal["white", "drop"] = "white"
    depth: Literal["scale", "clip"] = "scale"
    orientation: Literal["apply", "ignore"] = "apply"


DISPLAYED = Decoding()


def decode_image(
    content: Content, *, decoding: Decoding = DISPLAYED, allow_truncated: bool = False
) -> Pixels:
    """Return the pixels of an image; what is none, or too large, is a `SampleError`."""
    medium = probe("image", content)
    if medium.size.width * medium.size.height > MAX_PIXELS:
        detail = f"{medium.size.width} x {medium.size.height}, the limit is {MAX_PIXELS}"
        raise SampleError("too many pixels", detail)
    if medium.ext == "jpg":
        num_scans = bytes(content).count(START_OF_SCAN)
        if num_scans > MAX_SCANS:
            raise SampleError("broken image", f"{num_scans} scans, the limit is {MAX_SCANS}")
        pixels = _decode_plain_jpeg(content, decoding)
        if pixels is not None:
            return pixels
    return _decode_any(content, decoding, allow_truncated)


def image_size(content: Content, decoding: Decoding = DISPLAYED) -> tuple[int, int]:
    """Return (width, height) of what `decode_image` gives, from the header."""
    medium = probe("image", content)
    plain = medium.ext == "jpg" and EXIF_MARK not in bytes(content[:HEADER_BYTES])
    if decoding.orientation == "apply" or plain:
        return medium.size.width, medium.size.height
    # Headers tell the size as displayed; which turns are left to the reader, Pillow knows.
    with _open_with_pillow(content) as image:
        width, height = image.size
        return width, height


def resize_crop(pixels: Pixels, fit: ResizeCrop, out: Pixels | None = None) -> Pixels:
    """Return the part of the resized image that its fit says, in `out` if that is given."""
    for _ in range(fit.halvings):
        height, width = pixels.shape[0] // 2, pixels.shape[1] // 2
        pixels = _resized(pixels, ResizeCrop((width, height), 0, 0, width, height, "box"))
    return _resized(pixels, fit, out)


def _resized(pixels: Pixels, fit: ResizeCrop, out: Pixels | None = None) -> Pixels:
    height, width = pixels.shape[:2]
    if out is None:
        out = np.empty((fit.height, fit.width, 3), np.uint8)
    down_first = _pillows_order()
    if fit.resized == (width, height):
        out[...] = _cut_out(pixels, fit)
    elif down_first is None:
        if fit.resized[0] * max(height, fit.resized[1]) > MAX_PIXELS:
            # Pillow makes the whole of it, though a part is kept.
            raise SampleError("too many pixels", f"{fit.resized} on the way to its size")
        image = need("PIL.Image", extra="image").fromarray(pixels)
        # The whole image: a `box` of it is resized by other weights at each pixel, rounded anew.
        out[...] = _cut_out(np.asarray(image.resize(fit.resized, FILTERS[fit.resample])), fit)
    else:
        _run_compiled(pixels, fit, out, down_first((width, height), fit.resized))
    return out


def _cut_out(pixels: Pixels, fit: ResizeCrop) -> Pixels:
    return pixels[fit.top : fit.top + fit.height, fit.left : fit.left + fit.width]


def _run_compiled(pixels: Pixels, fit: ResizeCrop, out: Pixels, down_first: bool) -> None:
    height, width = pixels.shape[:2]
    place = (*fit.resized, fit.left, fit.top, fit.width, fit.height)
    number = FILTERS[fit.resample]
    try:
        _resample.resample(
            np.ascontiguousarray(pixels), width, height, out, *place, number, down_first
        )
    except MemoryError as error:
        raise SampleError("too many pixels", f"{fit.resized} on the way to its size") from error


@cache
def _pillows_order() -> Order | None:
    """Return the order that makes the compiled code equal to this Pillow, None if none does.

    Both round to bytes between the two passes, so that the order shows.
    """
    if _resample is None:
        return None
    pillow = need("PIL.Image", extra="image")
    noise = np.random.default_rng(0).integers(0, 2, (40, 12, 3)).astype(np.uint8) * 255
    for order in (_tall_first, _never_first):
        tries = []
        for size in ((5, 9), (9, 5), (11, 3), (30, 20), (12, 7), (6, 60), (30, 90)):
            for resample, number in FILTERS.items():
                found = np.empty((size[1], size[0], 3), np.uint8)
                _run_compiled(
                    noise, ResizeCrop(size, 0, 0, *size, resample), found, order((12, 40), size)
                )
                wanted = pillow.fromarray(noise).resize(size, number)
                tries.append(np.array_equal(found, np.asarray(wanted)))
        if all(tries):
            return order
    return None


def _tall_first(size: tuple[int, int], resized: tuple[int, int]) -> bool:
    # Pillow 13, found by trial: where rows become fewer by more than twice what columns do.
    fewer_columns, fewer_rows = size[0] - resized[0], size[1] - resized[1]
    return fewer_rows > 0 and fewer_rows > 2 * fewer_columns


def _never_first(size: tuple[int, int], resized: tuple[int, int]) -> bool:
    return False


def _decode_plain_jpeg(content: Content, decoding: Decoding) -> Pixels | None:
    """Return the pixels of a whole grey or colour JPEG that need not be turned, else None."""
    simplejpeg = need("simplejpeg", extra="image")
    data = bytes(content) if not isinstance(content, bytes) else content
    try:
        with foreign("broken image"):
            colours = simplejpeg.decode_jpeg_header(data, strict=False)[2]
            is_stored_so = decoding.orientation == "ignore" or not _is_turned(data)
            if colours not in ("YCbCr", "Gray") or not is_stored_so:
                return None
            pixels: Pixels = simplejpeg.decode_jpeg(data, strict=True)
            return pixels
    except SampleError:
        # Some of what it complains of is harmless: Pillow, which all others use, decides.
        return None


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that this Pillow was built with; it stumbles over names of others."""
    image = need("PIL.Image", extra="image")
    image.init()
    return tuple(format for format in FORMATS if format in image.OPEN)


def _is_turned(data: bytes) -> bool:
    if EXIF_MARK not in data[:HEADER_BYTES]:
        return False
    with _open_with_pillow(data) as image:
        return image.getexif().get(ORIENTATION_TAG, 1) not in (0, 1)


def _decode_any(content: Content, decoding: Decoding, allow_truncated: bool) -> Pixels:
    ops, files = need("PIL.ImageOps", extra="image"), need("PIL.ImageFile", extra="image")
    # Pillow knows this as a setting of the process; a stage has one value for all its threads.
    files.LOAD_TRUNCATED_IMAGES = allow_truncated
    with _open_with_pillow(content) as image:
        sides = (getattr(image, "tag_v2", {}).get(tag) for tag in TILE_TAGS)
        if prod(side for side in sides if isinstance(side, int)) > MAX_PIXELS:
            raise SampleError("too many pixels", f"in one tile, the limit is {MAX_PIXELS}")
        image.load()
        if decoding.orientation == "apply":
            image = ops.exif_transpose(image)
        return _to_rgb(image, decoding)


@contextmanager
def _open_with_pillow(content: Content) -> Iterator[Any]:
    """Yield Pillow's image; what Pillow finds wrong with it is a `SampleError`."""
    pillow = need("PIL.Image", extra="image")
    with foreign("broken image"):
        try:
            # Only formats whose header we know: Pillow would try dozens more.
            with pillow.open(io.BytesIO(content), formats=_formats()) as image:
                yield image
        except pillow.DecompressionBombError as error:
            raise SampleError("too many pixels", str(error)) from error
        except pillow.UnidentifiedImageError as error:
            # Its own words name the buffer that we made, not the image.
            raise SampleError("broken image", "its header is not that of any format") from error
        except OSError as error:
            if "truncated" in str(error):
                raise SampleError("truncated image", str(error)) from error
            raise


def _to_rgb(image: Any, decoding: Decoding) -> Pixels:
    mode = image.mode
    has_alpha = "A" in image.getbands() or mode in ("RGBa", "La") or "transparency" in image.info
    if decoding.depth == "scale":
        if mode == "I" or mode.startswith("I;16"):
            return from_16_bits(np.asarray(image))
        if mode == "F":
            raise SampleError("unknown range of values", "the image holds floating point numbers")
    if has_alpha and decoding.alpha == "white":
        return _blend_on_white(np.asarray(image.convert("RGBA"), np.uint8))
    return np.array(image.convert("RGB"), np.uint8)


def _blend_on_white(rgba: Pixels) -> Pixels:
    # In whole numbers, rounded: 100 at half alpha (128) is (100 * 128 + 255 * 127 + 127) // 255.
    colour, alpha = rgba[..., :3].astype(np.uint32), rgba[..., 3:].astype(np.uint32)
    blended = colour * alpha + 255 * (255 - alpha)
    return ((blended + 127) // 255).astype(np.uint8)


def from_16_bits(values: NDArray[Any]) -> Pixels:
    """Return grey values of 16 bits as pixels of 8: scaled, where Pillow cuts off above 255."""
    # 65535 is 255 * 257, so that black and white stay what they are.
    scaled = (np.clip(values.astype(np.int64), 0, 65535) + 128) // 257
    return np.repeat(scaled.astype(np.uint8)[..., None], 3, axis=2)
