"""Real images and clips for tests, encoded by Pillow and PyAV."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

# What Pillow calls a format -> the extension that it has in a shard
IMAGE_FORMATS = {
    "JPEG": "jpg",
    "PNG": "png",
    "GIF": "gif",
    "WEBP": "webp",
    "BMP": "bmp",
    "TIFF": "tif",
    "AVIF": "avif",
}


def pixels(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Return a smooth image that differs from seed to seed."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [(x * (seed + 2) + y * k + 31 * seed) % 256 for k in (1, 3, 5)]
    return np.stack(channels, axis=-1).astype(np.uint8)


@lru_cache(maxsize=256)
def image(format: str = "JPEG", width: int = 64, height: int = 48, seed: int = 0) -> bytes:
    """Return a small image in one of Pillow's formats."""
    return encode(format, pixels(width, height, seed))


def encode(format: str, array: np.ndarray, **options: Any) -> bytes:
    """Return an array as an image file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format, **options)
    return buffer.getvalue()


def clip(path: Path, *, codec: str, num_frames: int = 12, rate: int = 25, **options: str) -> bytes:
    """Write a short video whose container the suffix names, and return its bytes."""
    import av

    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(pixels(64, 48, number), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()
