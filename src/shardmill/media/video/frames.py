"""Frames of a video as images: opened, probed, chosen by a sampler, decoded, as they are displayed.

A phone's video lies on its side and says so in its display matrix, which is applied here. A JPEG is
made from the planes of a frame directly, scaled and brought to JPEG's colours in one step; only
WebP and pixel models need RGB.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from struct import unpack_from
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, need
from shardmill.media.image.geometry import MAX_SIDE
from shardmill.media.video.decode import decode_frames, measure_changes
from shardmill.media.video.file import OpenVideo, Video, broken_as, check_size, open_video
from shardmill.media.video.samplers import FrameSampler
from shardmill.media.video.table import VideoTable, probe_video
from shardmill.model.frames import FrameNumbers
from shardmill.model.sample import MediaSize

Pixels = NDArray[np.uint8]
Turn = Callable[[Pixels], Pixels]
Clip = tuple[float, float]
Made = TypeVar("Made")

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
MAX_PIXEL_ASPECT = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame: its number and time in the whole video, and its pixels [height, width, 3]."""

    number: int
    time_s: float
    pixels: NDArray[np.uint8]


def read_frames(
    video: Video,
    sampler: FrameSampler,
    *,
    clip: Clip | None = None,
    long_side: int | None = None,
    threads: int = 1,
) -> list[Frame]:
    """Return the frames that a sampler picks of a video, or of its part [start, end) in seconds.

    `video` is bytes, a path or url, or a part of a blob. What cannot be read is a `SampleError`.
    """
    converter = FrameConverter(long_side)
    with open_video(video, threads=threads) as opened:
        table = look_at(opened, sampler, clip)
        numbers = table.numbers_at(sampler.times(table))
        pixels = decode_each(opened, table, numbers, converter.rgb)
    return [
        Frame(table.first_number + number, float(table.times_s[number]), made)
        for number, made in zip(numbers.tolist(), pixels)
    ]


def look_at(video: OpenVideo, sampler: FrameSampler, clip: Clip | None) -> VideoTable:
    """Return what a sampler asks to see of a video: its frames, and how much they change."""
    table = probe_video(video)
    if clip is not None:
        table = table.within(*clip)
    if getattr(sampler, "needs_changes", False):
        table = replace(table, changes=measure_changes(video, table))
    return table


def decode_each(
    video: OpenVideo, table: VideoTable, numbers: FrameNumbers, make: Callable[[Any], Made]
) -> list[Made]:
    """Return what `make` makes of each frame, in the order of the numbers; repeats are shared."""
    with broken_as("broken video"):
        made = {number: make(frame) for number, frame in decode_frames(video, table, numbers)}
    return [made[number] for number in numbers.tolist()]


# Flags of swscale, as numbers: av has names for all of them only since 18.
LANCZOS = 0x200
LANCZOS_EXACT = LANCZOS | 0x40000 | 0x80000  # SWS_ACCURATE_RND and SWS_BITEXACT


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFormat:
    """How frames are written: "jpg" or "webp", at a quality, at most `long_side` pixels long."""

    format: Literal["jpg", "webp"] = "jpg"
    quality: int = 90
    long_side: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"quality must lie between 1 and 100, got {self.quality}")
        if self.long_side is not None and not 1 <= self.long_side <= MAX_SIDE:
            raise ConfigError(f"long_side must lie between 1 and {MAX_SIDE}, got {self.long_side}")


class FrameConverter:
    """Makes images of the frames of one video; keeps what scaling needs from frame to frame."""

    def __init__(self, long_side: int | None = None, pixel_aspect: Fraction | None = None) -> None:
        """`pixel_aspect`, if given, says how much wider than tall the pixels are: made square."""
        reformatter = need("av.video.reformatter", extra="video")
        self._long_side, self._aspect = long_side, pixel_aspect or Fraction(1)
        self._scaler = reformatter.VideoReformatter()
        self._quick = {"format": "rgb24", "interpolation": LANCZOS}
        # What is stored is the same on every processor; that takes some more time.
        self._exact = {"format": "rgb24", "interpolation": LANCZOS_EXACT}
        self._jpeg = {
            "format": "yuvj420p",
            "interpolation": LANCZOS_EXACT,
            "dst_colorspace": reformatter.Colorspace.ITU601,
            "dst_color_range": reformatter.ColorRange.JPEG,
        }

    def rgb(self, frame: Any) -> Pixels:
        """Return the pixels [height, width, 3], within rounding of those that `encode` stores."""
        return self._planes(frame, self._quick)[0]

    def encode(self, frame: Any, format: ImageFormat) -> tuple[bytes, MediaSize]:
        """Return the image as a file, and its size."""
        width, height = self._size(frame)
        if format.format == "jpg" and width % 2 == height % 2 == 0:
            planes = self._planes(frame, self._jpeg)
            simplejpeg = need("simplejpeg", extra="image")
            content = simplejpeg.encode_jpeg_yuv_planes(*planes, quality=format.quality)
        else:
            # libjpeg-turbo reads planes to an even row and column, even if they have none.
            planes = self._planes(frame, self._exact)
            content = _encode(planes[0], format)
        height, width = planes[0].shape[:2]
        return content, MediaSize(width=width, height=height)

    def _size(self, frame: Any) -> tuple[int, int]:
        shape = square_pixels(frame.width, frame.height, self._aspect)
        check_size(*shape)  # a frame may be larger than its container says
        return fit_long_side(*shape, self._long_side)

    def _planes(self, frame: Any, conversion: dict[str, Any]) -> list[Pixels]:
        scaled = self._scaler.reformat(frame, *self._size(frame), threads=1, **conversion)
        turn, depth = turn_of(frame), 4 - len(scaled.planes)  # 3 planes of 1, or 1 of 3
        return [np.ascontiguousarray(turn(_pixels(plane, depth))) for plane in scaled.planes]


def square_pixels(width: int, height: int, aspect: Fraction) -> tuple[int, int]:
    """Return the size at which wide or tall pixels become square ones, enlarging one side.

    720 x 576 with pixels of 16 : 15 is shown as 768 x 576; absurd shapes are not believed.
    """
    if not 1 / MAX_PIXEL_ASPECT <= aspect <= MAX_PIXEL_ASPECT:
        return width, height
    if aspect >= 1:
        return max(1, round(width * aspect)), height
    return width, max(1, round(height / aspect))


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


def _pixels(plane: Any, depth: int) -> Pixels:
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height]
    pixels = rows[:, : depth * plane.width]
    return pixels if depth == 1 else pixels.reshape(plane.height, plane.width, depth)


def _encode(pixels: Pixels, format: ImageFormat) -> bytes:
    if format.format == "jpg":
        simplejpeg = need("simplejpeg", extra="image")
        content: bytes = simplejpeg.encode_jpeg(
            pixels, quality=format.quality, colorsubsampling="420"
        )
        return content
    file = io.BytesIO()
    need("PIL.Image", extra="image").fromarray(pixels).save(file, "WEBP", quality=format.quality)
    return file.getvalue()
