"""Frames of a video as images: chosen by a sampler, decoded, as they are displayed.

Decoding seeks to key frames, goes on from there, and passes over what nobody needs. Frames of one
group of pictures are taken in one pass. Frames that no other frame refers to are not decoded unless
they are wanted, which saves a quarter to a half of the work of H.264. A frame is known by its
timestamp, so a seek that lands elsewhere cannot yield a wrong one. Decoders mark a damaged frame,
but none of those that are predicted from it: all up to the next key frame are.

AVI does not say when a frame is shown. Where frames look ahead (H.264, or DivX that packs two of
them into one packet), FFmpeg's timestamps are guesses, but what comes out of the decoder is in the
right order: such a video is decoded from its beginning, and the frame with number n is the one that
n others came before.

A phone's video lies on its side and says so in its display matrix, which is applied here. A JPEG is
made from the planes of a frame directly, scaled and brought to JPEG's colours in one step; only
WebP and pixel models need RGB.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from struct import unpack_from
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError, need
from shardmill.media.containers import broken_as
from shardmill.media.geometry import MAX_SIDE
from shardmill.media.samplers import FrameSampler, Seconds, VideoTable
from shardmill.media.video import (
    OpenVideo,
    Video,
    check_size,
    damages,
    decode_whole,
    open_video,
    probe_video,
    read_packets,
)
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
# Decoders that know which frames nobody refers to, and may pass over them without a trace.
KNOWS_UNREFERENCED = ("h264", "mpeg4", "mpeg2video", "mpeg1video")
# Reading on over some packets costs less than a seek.
SEEK_PACKETS = 32
# Not every packet of these has a time; after a seek FFmpeg may guess another one than before.
TIMES_CHANGE = ("mpeg", "mpegts")
EARLIEST = -(1 << 62)
WIDTH, HEIGHT = 64, 36  # of the grey images that are compared
# Flags of swscale, as numbers: av has names for all of them only since 18.
LANCZOS = 0x200
LANCZOS_EXACT = LANCZOS | 0x40000 | 0x80000  # SWS_ACCURATE_RND and SWS_BITEXACT


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
    if getattr(sampler, "needs_types", False):
        table = replace(table, is_key=find_i_frames(video, table))
    return table


def find_i_frames(video: OpenVideo, table: VideoTable) -> NDArray[np.bool_]:
    """Return which frames are coded as I, also those from which nothing can be decoded alone."""
    intra = need("av.video.frame", extra="video").PictureType.I
    found = np.zeros(len(table), bool)
    with broken_as("broken video"):
        for number, frame in decode_frames(video, table, np.arange(len(table))):
            found[number] = frame.pict_type == intra
    return found


def decode_each(
    video: OpenVideo, table: VideoTable, numbers: FrameNumbers, make: Callable[[Any], Made]
) -> list[Made]:
    """Return what `make` makes of each frame, in the order of the numbers; repeats are shared."""
    with broken_as("broken video"):
        made = {number: make(frame) for number, frame in decode_frames(video, table, numbers)}
    return [made[number] for number in numbers.tolist()]


def decode_frames(
    video: OpenVideo, table: VideoTable, numbers: FrameNumbers
) -> Iterator[tuple[int, Any]]:
    """Yield (number, decoded frame) of each number once, mostly in the order of time.

    Frames of one pass come in that order; only those that look back across a key frame may come
    late. A frame that cannot be decoded, or only with damage, is a `SampleError`; what FFmpeg
    raises is for the caller to turn into one (see `broken_as`).
    """
    if table.is_counted:
        yield from count_frames(video, table, numbers)
        return
    reader = _Reader(video)
    for one_pass in _plan(table, np.unique(numbers)):
        yield from reader.decode(one_pass)
        if one_pass.wanted:
            missing = min(one_pass.wanted.values())
            detail = f"frame {missing} at {table.times_s[missing]:g} s cannot be decoded"
            raise SampleError("broken video", detail)


def measure_changes(video: OpenVideo, table: VideoTable) -> Seconds:
    """Return how much each frame differs from the one before, from 0 to 1; decodes every frame.

    Frames are compared as small grey images. What moves all the time (a pan, water) changes much
    from frame to frame, but not more than before, so the lesser of the difference and its own
    change counts: differences of 0.2, 0.2, 0.7, 0.2 are changes of 0, 0.5 and 0.2.
    """
    scaler = need("av.video.reformatter", extra="video").VideoReformatter()
    differences = np.zeros(len(table))
    before: NDArray[np.int16] | None = None
    with broken_as("broken video"):
        for number, frame in decode_frames(video, table, np.arange(len(table))):
            small = scaler.reformat(frame, WIDTH, HEIGHT, format="gray", threads=1)
            now = small.to_ndarray().astype(np.int16)
            if before is not None:
                differences[number] = np.abs(now - before).mean() / 255
            before = now
    return changes_of(differences)


def changes_of(differences: Seconds) -> Seconds:
    """Return what is new in differences from frame to frame; the first of them is no difference."""
    changes = [0.0] + [min(now, abs(now - last)) for last, now in pairwise(differences.tolist())]
    return np.array(changes)


@dataclass(slots=True)
class _Pass:
    """Packets to decode in one go, `start` to `last`, and the frames wanted of them by time."""

    start: int
    start_pts: int
    last: int
    wanted: dict[int, int] = field(default_factory=dict)


def _plan(table: VideoTable, numbers: FrameNumbers) -> list[_Pass]:
    """Return the passes in order; frames whose packets follow each other share one.

    With key frames at packets 0, 20, 80, the frames 25, 30 and 82 need two: 20 to 30, 80 to 82.
    """
    passes: list[_Pass] = []
    order = numbers[np.lexsort((table.place[numbers], table.start_place[numbers]))]
    for number in order.tolist():
        start, place = int(table.start_place[number]), int(table.place[number])
        if not passes or start > passes[-1].last + 1:
            passes.append(_Pass(start, int(table.start_pts[number]), place))
        passes[-1].last = max(passes[-1].last, place)
        passes[-1].wanted[int(table.pts[number])] = number
    return passes


class _Reader:
    """Reads packets on and on, and seeks where that is shorter."""

    def __init__(self, video: OpenVideo) -> None:
        self._video = video
        self._context = video.stream.codec_context
        self._can_skip = video.codec in KNOWS_UNREFERENCED
        self._can_seek = video.container.format.name not in TIMES_CHANGE
        self._packets: Iterator[Any] = iter(())
        self._place = -1  # of the packet read last; unknown before the first seek
        self._is_damaged = False

    def decode(self, todo: _Pass) -> Iterator[tuple[int, Any]]:
        """Yield the wanted frames of a pass and remove them from it."""
        packet, self._is_damaged = self._go_to(todo), False
        count = todo.last - todo.start
        while packet is not None and todo.wanted:
            self._skip_unreferenced(packet.pts not in todo.wanted)
            yield from self._take(self._context.decode(packet), todo)
            if count == 0:
                break
            count -= 1
            packet = self._next()
        if todo.wanted:
            # Decoders hold frames back to put them in order; None makes them give up the last.
            yield from self._take(self._context.decode(None), todo)
        self._context.flush_buffers()

    def _take(self, frames: list[Any], todo: _Pass) -> Iterator[tuple[int, Any]]:
        for frame in frames:
            self._is_damaged = damages(frame, self._is_damaged)
            number = todo.wanted.pop(frame.pts, None)
            if number is None:
                continue
            if self._is_damaged:
                raise SampleError("broken video", f"frame {number} is damaged")
            yield number, frame

    def _go_to(self, todo: _Pass) -> Any:
        """Return the packet where a pass starts, reading on to it or seeking."""
        if 0 <= self._place < todo.start and (
            todo.start - self._place <= SEEK_PACKETS or not self._can_seek
        ):
            packet = self._read_to(todo, to_the_end=not self._can_seek)
            if packet is not None:
                return packet
        # Some indexes lead past a key frame; from the beginning every packet comes by.
        a_second = round(1 / self._video.stream.time_base)
        for before in (0, a_second, 10 * a_second) if self._can_seek else ():
            self._seek(max(todo.start_pts - before, EARLIEST))
            packet = self._read_to(todo, to_the_end=False)
            if packet is not None:
                return packet
        self._video.rewind()
        self._context, self._packets = self._video.stream.codec_context, read_packets(self._video)
        return self._read_to(todo, to_the_end=True)

    def _read_to(self, todo: _Pass, *, to_the_end: bool) -> Any:
        packet = self._next()
        while packet is not None and not (packet.pts == todo.start_pts and packet.is_keyframe):
            # Packets come in the order of decoding, which is hardly ever after showing.
            is_past = packet.dts is not None and packet.dts > todo.start_pts
            packet = None if is_past and not to_the_end else self._next()
        self._place = todo.start
        return packet

    def _seek(self, pts: int) -> None:
        self._packets = iter(())
        with suppress(need("av", extra="video").FFmpegError):
            self._video.container.seek(pts, stream=self._video.stream, backward=True)
            self._packets = read_packets(self._video)

    def _next(self) -> Any:
        self._place += 1
        packet = next(self._packets, None)
        if packet is not None and packet.pts is None:
            packet.pts = packet.dts  # as the table has it
        return packet

    def _skip_unreferenced(self, skip: bool) -> None:
        if self._can_skip:
            self._context.skip_frame = "NONREF" if skip else "DEFAULT"


def count_frames(
    video: OpenVideo, table: VideoTable, numbers: FrameNumbers
) -> Iterator[tuple[int, Any]]:
    """Yield (number, decoded frame) as `decode_frames` does, of a video that `is_counted`."""
    wanted = {table.first_number + number: number for number in numbers.tolist()}
    for count, (frame, is_damaged) in enumerate(decode_whole(video)):
        number = wanted.pop(count, None)
        if number is not None:
            if is_damaged:
                raise SampleError("broken video", f"frame {count} is damaged")
            yield number, frame
        if not wanted:
            return
    if wanted:
        raise SampleError("broken video", f"frame {min(wanted)} cannot be decoded")


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
