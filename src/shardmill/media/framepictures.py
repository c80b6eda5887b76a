"""Decoded frames to pictures as they are displayed: turned, scaled, encoded.

A phone's video lies on its side and says so in its display matrix, which is applied here. A JPEG is
made from the planes of a frame directly, scaled and brought to JPEG's colours in one step; only
WebP and pixel models need RGB.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from struct import unpack_from
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.extras import need
from shardmill.media.geometry import MAX_SIDE
from shardmill.model.sample import MediaSize

Pixels = NDArray[np.uint8]
Turn = Callable[[Pixels], Pixels]

# Signs of (a, b, c, d) of the matrix that takes (x, y) to (a x + c y, b x + d y).
TURNS: dict[tuple[int, int, int, int], Turn] = {
    (1, 0, 0, 1): lambda plane: plane,
    (0, 1, -1, 0): lambda plane: np.rot90(plane, -1),
    (-1, 0, 0, -1): lambda plane: np.rot90(plane, 2),
    (0, -1, 1, 0): lambda plane: np.rot90(plane, 1),
    (-1, 0, 0, 1): lambda plane: plane[:, ::-1],
    (1, 0, 0, -1): lambda plane: plane[::-1],
    (0, 1, 1, 0): lambda plane: plane.swapaxes(0, 1),
    (0, -1, -1, 0): lambda plane: np.rot90(plane, 2).swapaxes(0, 1),
}
AS_IT_LIES = TURNS[1, 0, 0, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFormat:
    """How frames are written: "jpg" or "webp", at a quality, at most `long_side` pixels long."""

    format: Literal["jpg", "webp"] = "jpg"
    quality: int = 90
    long_side: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"quality must lie between 1 and 100, got {self.quality}")
        if self.long_side is not None and not 1 <= self.long_side <= MAX_SIDE:
            raise ConfigError(f"long_side must lie between 1 and {MAX_SIDE}, got {self.long_side}")


class FramePainter:
    """Makes pictures of the frames of one video; keeps what scaling needs from frame to frame."""

    def __init__(self, long_side: int | None = None) -> None:
        reformatter = need("av.video.reformatter", extra="video")
        self._long_side = long_side
        self._scaler = reformatter.VideoReformatter()
        self._lanczos = reformatter.Interpolation.LANCZOS
        self._jpeg_colours = {
            "format": "yuvj420p",
            "dst_colorspace": reformatter.Colorspace.ITU601,
            "dst_color_range": reformatter.ColorRange.JPEG,
        }

    def rgb(self, frame: Any) -> Pixels:
        """Return the pixels [height, width, 3]."""
        (plane,) = self._planes(frame, format="rgb24")
        return plane

    def encode(self, frame: Any, format: PictureFormat) -> tuple[bytes, MediaSize]:
        """Return the picture as a file, and its size."""
        if format.format == "jpg":
            planes = self._planes(frame, **self._jpeg_colours)
            simplejpeg = need("simplejpeg", extra="image")
            content = simplejpeg.encode_jpeg_yuv_planes(*planes, quality=format.quality)
        else:
            planes = [self.rgb(frame)]
            content = _encode_webp(planes[0], format.quality)
        height, width = planes[0].shape[:2]
        return content, MediaSize(width=width, height=height)

    def _planes(self, frame: Any, **colours: Any) -> list[Pixels]:
        width, height = fit_long_side(frame.width, frame.height, self._long_side)
        scaled = self._scaler.reformat(
            frame, width, height, interpolation=self._lanczos, threads=1, **colours
        )
        turn = turn_of(frame)
        return [np.ascontiguousarray(turn(_pixels(plane))) for plane in scaled.planes]


def fit_long_side(width: int, height: int, long_side: int | None) -> tuple[int, int]:
    """Return the size of the same shape whose longer side is at most `long_side`.

    1920 x 1080 to at most 512: 512 x 288.
    """
    longer = max(width, height)
    if long_side is None or longer <= long_side:
        return width, height
    return max(1, round(width * long_side / longer)), max(1, round(height * long_side / longer))


def turn_of(frame: Any) -> Turn:
    """Return how a frame's planes must be turned; odd angles are left as they are."""
    matrix = next((data for data in frame.side_data if data.type.name == "DISPLAYMATRIX"), None)
    if matrix is None:
        return AS_IT_LIES
    a, b, _, c, d = unpack_from("=iiiii", bytes(matrix))
    a, b, c, d = (int(np.sign(value)) for value in (a, b, c, d))
    return TURNS.get((a, b, c, d), AS_IT_LIES)


def _pixels(plane: Any) -> Pixels:
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height]
    if plane.line_size < 3 * plane.width:  # one value a pixel
        return rows[:, : plane.width]
    return rows[:, : 3 * plane.width].reshape(plane.height, plane.width, 3)


def _encode_webp(pixels: Pixels, quality: int) -> bytes:
    file = io.BytesIO()
    need("PIL.Image", extra="image").fromarray(pixels).save(file, "WEBP", quality=quality)
    return file.getvalue()
