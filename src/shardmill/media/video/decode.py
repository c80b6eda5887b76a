"""Decodes chosen frames: seeks to key frames, decodes from there on, passes over what none needs.

Frames of one group of pictures are taken in one pass. Frames that no other frame refers to are not
decoded unless they are wanted, which saves a quarter to a half of the work of H.264. A frame is
known by its timestamp, so a seek that lands elsewhere cannot yield a wrong one. Decoders mark a
damaged frame, but none of those that are predicted from it: all up to the next key frame are.

AVI does not say when a frame is shown. Where frames look ahead (H.264, or DivX that packs two of
them into one packet), FFmpeg's timestamps are guesses, but what comes out of the decoder is in the
right order: such a video is decoded from its beginning, and the frame with number n is the one that
n others came before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError, need
from shardmill.media.video.file import OpenVideo, broken_as, read_packets
from shardmill.media.video.table import Seconds, VideoTable
from shardmill.model.frames import FrameNumbers

# Decoders that know which frames nobody refers to, and may pass over them without a trace.
KNOWS_UNREFERENCED = ("h264", "mpeg4", "mpeg2video", "mpeg1video")
# Reading on over some packets costs less than a seek.
SEEK_PACKETS = 32
# Not every packet of these has a time; after a seek FFmpeg may guess another one than before.
TIMES_CHANGE = ("mpeg", "mpegts")
EARLIEST = -(1 << 62)
WIDTH, HEIGHT = 64, 36  # of the grey images that are compared


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
    """Return the passes in order; frames whose packets follow each other share one."""
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
            yield from self._take(self._context.decode(None), todo)
        self._context.flush_buffers()

    def _take(self, frames: list[Any], todo: _Pass) -> Iterator[tuple[int, Any]]:
        for frame in frames:
            self._is_damaged = is_damaged(frame, self._is_damaged)
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
    damaged = False
    for count, frame in enumerate(_all_frames(video)):
        damaged = is_damaged(frame, damaged)
        number = wanted.pop(count, None)
        if number is not None:
            if damaged:
                raise SampleError("broken video", f"frame {count} is damaged")
            yield number, frame
        if not wanted:
            return
    if wanted:
        raise SampleError("broken video", f"frame {min(wanted)} cannot be decoded")


def is_damaged(frame: Any, was_damaged: bool) -> bool:
    """Tell whether a frame is damaged, or may refer to one before it that was."""
    return bool(frame.is_corrupt or (was_damaged and not frame.key_frame))


def _all_frames(video: OpenVideo) -> Iterator[Any]:
    video.rewind()
    context = video.stream.codec_context
    for packet in read_packets(video):
        yield from context.decode(packet)
    yield from context.decode(None)
