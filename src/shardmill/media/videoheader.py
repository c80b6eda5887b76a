"""Size, frames, rate and duration of a video from its container's headers; nothing is decoded.

AVI here; ISO media (MP4, MOV) and Matroska (MKV, WebM) in their own modules; what only FFmpeg
knows (Ogg, MPEG, FLV, ASF) is asked of PyAV. A phone's display matrix turns width and height.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from struct import unpack_from
from typing import TypeAlias

from shardmill.extras import need
from shardmill.media.isomedia import iso_size
from shardmill.media.matroska import matroska_size
from shardmill.model.sample import MediaSize

Bytes: TypeAlias = bytes | memoryview
ASF = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")


def video_format(head: bytes) -> str | None:
    """Return the extension of the container that these first bytes begin, or None."""
    if head[4:8] in (b"ftyp", b"moov", b"wide", b"mdat"):
        return "mov" if head[4:8] != b"ftyp" or head[8:12] == b"qt  " else "mp4"
    if head[:4] == b"\x1aE\xdf\xa3":
        return "webm" if b"webm" in head else "mkv"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    for magic, ext in ((b"OggS", "ogv"), (b"\0\0\x01\xba", "mpg"), (b"FLV", "flv"), (ASF, "wmv")):
        if head.startswith(magic):
            return ext
    return "ts" if len(head) > 188 and head[0] == head[188] == 0x47 else None


def video_size(format: str, data: Bytes) -> MediaSize | None:
    """Return what the headers say of the first video track, or None if there is none."""
    return READERS.get(format, _ask_ffmpeg)(data)


def _avi(data: Bytes) -> MediaSize | None:
    rate = scale = num_frames = 0
    for kind, body in _chunks(data, 12):
        if kind != b"LIST" or body[:4] != b"hdrl":
            continue
        for inner, stream in _chunks(body, 4):
            if inner != b"LIST":
                continue
            parts = dict(_chunks(stream, 4))
            header, format = parts.get(b"strh", b""), parts.get(b"strf", b"")
            if header[:4] == b"vids":
                scale, rate, _, num_frames = unpack_from("<IIII", header, 20)
                width, height = unpack_from("<ii", format, 4)
                fps = rate / scale if scale else 0.0
                return MediaSize(
                    width=width,
                    height=abs(height),
                    num_frames=num_frames,
                    fps=fps,
                    duration_s=num_frames / fps if fps else 0.0,
                )
    return None


def _chunks(data: Bytes, at: int) -> Iterator[tuple[bytes, Bytes]]:
    view = memoryview(data)
    while at + 8 <= len(view):
        kind, size = unpack_from("<4sI", view, at)
        yield kind, view[at + 8 : at + 8 + size]
        at += 8 + size + (size & 1)


def _ask_ffmpeg(data: Bytes) -> MediaSize | None:
    av = need("av", extra="video")
    try:
        with av.open(io.BytesIO(data)) as container:
            if not container.streams.video:
                return None
            stream = container.streams.video[0]
            seconds = (container.duration or 0) / 1_000_000
            fps = float(stream.average_rate or 0)
            return MediaSize(
                width=stream.width,
                height=stream.height,
                num_frames=stream.frames,
                fps=fps,
                duration_s=seconds,
            )
    except av.FFmpegError:
        return None


READERS: dict[str, Callable[[Bytes], MediaSize | None]] = {
    "mp4": iso_size,
    "mov": iso_size,
    "mkv": matroska_size,
    "webm": matroska_size,
    "avi": _avi,
}
