"""The index of an ISO media file, read from a blob, and checked before anybody trusts it.

FFmpeg makes room for as many packets as `stsz` claims, also where one number stands for the size of
all: four kilobytes can ask for gigabytes. So the claim is compared with the bytes that there are.
"""

from __future__ import annotations

from struct import error as StructError
from struct import unpack_from
from typing import Protocol

from shardmill.errors import SampleError
from shardmill.media.isomedia import find_boxes, first_box
from shardmill.model.frames import MAX_FRAMES

MAX_MOOV_BYTES = 1 << 28
MAX_BOXES = 1 << 12


class Readable(Protocol):
    """Bytes that can be read anywhere; fewer come back only at their end."""

    @property
    def num_bytes(self) -> int:
        """How many there are."""

    def read(self, start: int, length: int) -> bytes:
        """Return the bytes from `start` on."""


def read_moov(file: Readable) -> bytes:
    """Return the content of the box that holds the index, empty if it is absurd or not there."""
    at = 0
    for _ in range(MAX_BOXES):
        header = file.read(at, 16)
        if len(header) < 16:
            break
        size, kind = unpack_from(">I4s", header)
        head = 8
        if size == 1:
            (size,), head = unpack_from(">Q", header, 8), 16
        elif size == 0:
            size = file.num_bytes - at
        if kind == b"moov":
            return file.read(at + head, size - head) if size <= MAX_MOOV_BYTES else b""
        if size < head:
            break
        at += size
    return b""


def check_claims(file: Readable) -> None:
    """Raise `SampleError` if an index claims more packets than its file can hold."""
    for track in find_boxes(read_moov(file), b"trak"):
        table = first_box(track, b"mdia", b"minf", b"stbl")
        sizes = first_box(table, b"stsz")
        try:
            size, count = unpack_from(">II", sizes, 4)
        except StructError:
            continue
        room = file.num_bytes // size if size else (len(sizes) - 12) // 4
        if count > room or (count > MAX_FRAMES and not _is_pcm(table)):
            detail = f"its index claims {count} packets, there is room for {room}"
            raise SampleError("absurd number of frames", detail)


def _is_pcm(table: bytes | memoryview) -> bool:
    """Sound whose every sample is a packet of its own: FFmpeg takes it by chunks."""
    times = first_box(table, b"stts")
    return len(times) >= 16 and unpack_from(">II", times, 4)[0] == 1 and times[12:16] == b"\0\0\0\1"
