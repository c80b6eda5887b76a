"""Images to pixels with the right colours: RGB bytes [height, width, 3], as displayed.

EXIF orientation is applied, transparency is blended on white, CMYK is converted, 16 bits are scaled
to 8, palettes and grey become RGB, of an animation the first frame is taken. JPEG goes through
libjpeg-turbo directly, everything else and everything odd through Pillow; both give equal pixels.
Scaled JPEG decoding is not used: it is off by far more than rounding (33 to 41 dB).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError, foreign, need
from shardmill.media.geometry import ResizeCrop
from shardmill.media.header import probe

Pixels = NDArray[np.uint8]
Content = bytes | memoryview

MAX_PIXELS = 1 << 27  # 384 MB as RGB
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF")
ORIENTATION_TAG = 0x0112
EXIF_MARK = b"Exif\0\0"
HEADER_BYTES = 1 << 16  # EXIF is one segment of at most 64 KB, and comes early
LANCZOS = 1  # Pillow's number for it


def decode_image(content: Content, *, allow_truncated: bool = False) -> Pixels:
    """Return the pixels of an image; what is none, or too large, is a `SampleError`."""
    medium = probe("image", content)
    if medium.size.width * medium.size.height > MAX_PIXELS:
        detail = f"{medium.size.width} x {medium.size.height}, the limit is {MAX_PIXELS}"
        raise SampleError("too many pixels", detail)
    if medium.ext == "jpg":
        pixels = _decode_plain_jpeg(content, allow_truncated)
        if pixels is not None:
            return pixels
    return _decode_any(content, allow_truncated)


def resize_crop(pixels: Pixels, fit: ResizeCrop) -> Pixels:
    """Return the middle of the image resized by Lanczos, as its fit says.

    torch's resampling is equal to Pillow's up to one level of 255 (two in five of a million where
    an image grows), at a third of the time; a torch that has no Lanczos leaves the work to Pillow.
    """
    height, width = pixels.shape[:2]
    if fit.resized != (width, height):
        pixels = (_torch_lanczos() or _pillow_lanczos)(pixels, fit.resized)
    cut = pixels[fit.top : fit.top + fit.height, fit.left : fit.left + fit.width]
    return np.ascontiguousarray(cut)


def resampler() -> str:
    """Return who resizes here, "torch" or "pillow"; their pixels may differ by rounding."""
    return "pillow" if _torch_lanczos() is None else "torch"


def _decode_plain_jpeg(content: Content, allow_truncated: bool) -> Pixels | None:
    """Return the pixels of a grey or colour JPEG that lies as it is displayed, else None."""
    simplejpeg = need("simplejpeg", extra="image")
    data = bytes(content) if not isinstance(content, bytes) else content
    try:
        with foreign("broken image"):
            colours = simplejpeg.decode_jpeg_header(data, strict=False)[2]
            if colours not in ("YCbCr", "Gray") or _is_turned(data):
                return None
            pixels: Pixels = simplejpeg.decode_jpeg(data, strict=not allow_truncated)
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


def _decode_any(content: Content, allow_truncated: bool) -> Pixels:
    ops, files = need("PIL.ImageOps", extra="image"), need("PIL.ImageFile", extra="image")
    # Pillow knows this as a setting of the process; a stage has one value for all its threads.
    files.LOAD_TRUNCATED_IMAGES = allow_truncated
    with _open_with_pillow(content) as image:
        image.load()
        return _to_rgb(ops.exif_transpose(image))


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


def _to_rgb(image: Any) -> Pixels:
    mode = image.mode
    if mode == "RGB" and "transparency" not in image.info:
        return np.array(image, np.uint8)
    if mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        return _blend_on_white(np.asarray(image.convert("RGBA"), np.uint8))
    if mode == "I" or mode.startswith("I;16"):
        return from_16_bits(np.asarray(image))
    if mode == "F":
        raise SampleError("unknown range of values", "the image holds floating point numbers")
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


def _torch_lanczos() -> Any:
    import torch

    if not hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"):
        return None

    def resample(pixels: Pixels, size: tuple[int, int]) -> Pixels:
        planes = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
        resized = torch.nn.functional.interpolate(
            planes, (size[1], size[0]), mode="lanczos", antialias=True
        )
        out: Pixels = resized[0].permute(1, 2, 0).numpy()
        return out

    return resample


def _pillow_lanczos(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    # The whole image: a `box` of it is resized by other weights at each pixel, and rounded anew.
    resized = need("PIL.Image", extra="image").fromarray(pixels).resize(size, LANCZOS)
    return np.asarray(resized, np.uint8)
