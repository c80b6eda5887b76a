"""Matroska files (MKV, WebM): EBML elements of the first video track, and its blocks counted.

An element is an id, a size and a body; id and size are numbers of 1 to 8 bytes whose first byte
says, by its leading zeros, how many follow. A size of all ones means "until the parent ends".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from struct import unpack
from typing import TypeAlias

from shardmill.model.sample import MediaSize

Bytes: TypeAlias = bytes | memoryview

SEGMENT, INFO, TRACKS, CLUSTER = 0x18538067, 0x1549A966, 0x1654AE6B, 0x1F43B675
TIMECODE_SCALE, DURATION = 0x2AD7B1, 0x4489
TRACK, TRACK_NUMBER, TRACK_TYPE, VIDEO, DEFAULT_DURATION = 0xAE, 0xD7, 0x83, 0xE0, 0x23E383
WIDTH, HEIGHT = 0xB0, 0xBA
SIMPLE_BLOCK, BLOCK_GROUP, BLOCK = 0xA3, 0xA0, 0xA1
ENTERED = (CLUSTER, BLOCK_GROUP)
UNKNOWN = -1
IS_VIDEO = 1
MAX_RATE = 30_000


@dataclass(slots=True)
class _Found:
    scale_ns: int = 1_000_000
    duration: float = 0.0
    track: int = 0
    width: int = 0
    height: int = 0
    frame_ns: int = 0
    num_frames: int = 0


def matroska_size(data: Bytes) -> MediaSize | None:
    """Return what the headers say of the first video track, or None if there is none."""
    found = _Found()
    for kind, segment in _elements(memoryview(data)):
        if kind == SEGMENT:
            _read_segment(segment, found)
    if not found.width:
        return None
    seconds = found.duration * found.scale_ns / 1e9
    rate = _rate(found.frame_ns)
    return MediaSize(
        width=found.width,
        height=found.height,
        num_frames=found.num_frames,
        fps=rate or (found.num_frames / seconds if seconds else 0.0),
        duration_s=seconds,
    )


def _rate(frame_ns: int) -> float:
    """Return the frames a second that whole nanoseconds a frame stand for, as FFmpeg does.

    30 a second are written as 33,333,333 ns, which would be 30.0000003: with numerators up to
    30,000 the nearest fraction is 30 / 1, and that of 41,708,333 ns is 24,000 / 1,001.
    """
    seconds = Fraction(frame_ns, 10**9).limit_denominator(MAX_RATE)
    return float(1 / seconds) if seconds else 0.0


def _read_segment(segment: memoryview, found: _Found) -> None:
    for kind, body in _elements(segment):
        if kind == INFO:
            for field, value in _elements(body):
                if field == TIMECODE_SCALE:
                    found.scale_ns = _whole(value)
                elif field == DURATION:
                    found.duration = _real(value)
        elif kind == TRACKS:
            for field, track in _elements(body):
                if field == TRACK and not found.width:
                    _read_track(dict(_elements(track)), found)
        elif kind in (SIMPLE_BLOCK, BLOCK) and body:
            found.num_frames += _number(body, 0, keep_marker=False)[0] == found.track


def _read_track(fields: dict[int, memoryview], found: _Found) -> None:
    if _whole(fields.get(TRACK_TYPE, memoryview(b""))) != IS_VIDEO:
        return
    video = dict(_elements(fields.get(VIDEO, memoryview(b""))))
    found.track = _whole(fields.get(TRACK_NUMBER, memoryview(b"")))
    found.width = _whole(video.get(WIDTH, memoryview(b"")))
    found.height = _whole(video.get(HEIGHT, memoryview(b"")))
    found.frame_ns = _whole(fields.get(DEFAULT_DURATION, memoryview(b"")))


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield (id, body); clusters and block groups are entered, so that their blocks come flat."""
    at = 0
    while at < len(data):
        kind, at = _number(data, at, keep_marker=True)
        size, at = _number(data, at, keep_marker=False)
        end = len(data) if size == UNKNOWN else at + size
        if kind not in ENTERED:
            yield kind, data[at:end]
            at = end


def _number(data: memoryview, at: int, *, keep_marker: bool) -> tuple[int, int]:
    """Return the number at `at` and where it ends; ids keep the bit that tells their length."""
    first = data[at]
    length = 9 - first.bit_length()
    if length > 8 or at + length > len(data):
        raise IndexError(f"no element at byte {at}")
    value = int.from_bytes(data[at : at + length], "big")
    if not keep_marker:
        value &= (1 << 7 * length) - 1
        if value == (1 << 7 * length) - 1:
            value = UNKNOWN
    return value, at + length


def _whole(value: memoryview) -> int:
    return int.from_bytes(value[:8], "big")


def _real(value: memoryview) -> float:
    if len(value) not in (4, 8):
        return 0.0
    return float(unpack(">f" if len(value) == 4 else ">d", value)[0])
