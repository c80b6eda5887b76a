"""ISO media files (MP4, MOV, M4V): the boxes under `moov` that describe the first video track.

moov/trak/tkhd        display matrix (a quarter turn swaps width and height)
moov/trak/mdia/mdhd   timescale, duration          hdlr  "vide"
.../minf/stbl/stsd    coded width and height       stsz  number of frames
moof/traf/trun        frames of a fragmented file, which `stsz` does not count
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack_from
from typing import TypeAlias

from shardmill.media.pictureheader import boxes
from shardmill.model.sample import MediaSize

Bytes: TypeAlias = bytes | memoryview


def iso_size(data: Bytes) -> MediaSize | None:
    """Return what the headers say of the first video track, or None if there is none."""
    for track in find_boxes(data, b"moov", b"trak"):
        handler = first_box(track, b"mdia", b"hdlr")
        if handler[8:12] == b"vide":
            return _track_size(data, track)
    return None


def _track_size(data: Bytes, track: Bytes) -> MediaSize | None:
    table = first_box(track, b"mdia", b"minf", b"stbl")
    entry = first_box(table, b"stsd")
    width, height = unpack_from(">HH", entry, 8 + 8 + 24)
    header = first_box(track, b"tkhd")
    if _is_turned(header):
        width, height = height, width
    timescale, duration = _time(first_box(track, b"mdia", b"mdhd"))
    (num_frames,) = unpack_from(">I", first_box(table, b"stsz") or bytes(12), 8)
    if num_frames == 0:
        num_frames = _fragment_frames(data, track_number(header))
    seconds = duration / timescale if timescale else 0.0
    return MediaSize(
        width=width,
        height=height,
        num_frames=num_frames,
        fps=num_frames / seconds if seconds else 0.0,
        duration_s=seconds,
    )


def _is_turned(header: Bytes) -> bool:
    # The matrix (a b u, c d v, x y w) turns by a quarter when a and d are 0.
    at = 40 if header[:1] == b"\0" else 52
    a, b, _, c, d = unpack_from(">iiiii", header, at)
    return bool(a == 0 == d and b != 0 != c)


def track_number(header: Bytes) -> int:
    """Return the number of a track, from the content of its `tkhd`."""
    (number,) = unpack_from(">I", header, 12 if header[:1] == b"\0" else 20)
    return int(number)


def _time(header: Bytes) -> tuple[int, int]:
    """Return (timescale, duration); all ones mean an unknown duration."""
    if header[:1] == b"\0":
        timescale, duration = unpack_from(">II", header, 12)
        return timescale, 0 if duration == 0xFFFFFFFF else duration
    timescale, duration = unpack_from(">IQ", header, 20)
    return timescale, 0 if duration == 0xFFFFFFFFFFFFFFFF else duration


def _fragment_frames(data: Bytes, track_number: int) -> int:
    total = 0
    for fragment in find_boxes(data, b"moof", b"traf"):
        (number,) = unpack_from(">I", first_box(fragment, b"tfhd"), 4)
        if number == track_number:
            total += sum(unpack_from(">I", run, 4)[0] for run in find_boxes(fragment, b"trun"))
    return total


def find_boxes(data: Bytes, *path: bytes) -> Iterator[Bytes]:
    """Yield the content of each box at a path such as moov/trak."""
    for kind, body in boxes(data):
        if kind == path[0]:
            if len(path) == 1:
                yield body
            else:
                yield from find_boxes(body, *path[1:])


def first_box(data: Bytes, *path: bytes) -> Bytes:
    """Return the content of the first box at a path, empty if there is none."""
    return next(find_boxes(data, *path), b"")
