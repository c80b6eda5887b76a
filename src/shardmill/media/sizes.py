"""What a medium is and how large, from its first bytes: the name it was given is not believed.

A text file named .jpg is no picture, whatever its suffix says; a PNG named .jpg is a PNG.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from struct import error as StructError

from shardmill.errors import ConfigError, SampleError
from shardmill.media.audioheader import audio_format, audio_size
from shardmill.media.pictureheader import picture_format, picture_size
from shardmill.media.videoheader import video_format, video_size
from shardmill.model.sample import MediaSize

HEAD = 256
MAX_SIDE = (1 << 31) - 1
REASONS = {"image": "not a picture", "video": "not a video", "audio": "not a sound"}


@dataclass(frozen=True, slots=True)
class Medium:
    """What a medium's header says: the extension of its format, and its size."""

    ext: str
    size: MediaSize


def probe(kind: str, data: bytes | memoryview) -> Medium:
    """Return extension and size of an "image", "video" or "audio", or raise `SampleError`.

    A GIF or animated WebP may stand where a video is wanted; its frames are not counted.
    """
    if kind not in REASONS:
        raise ConfigError(f"a medium is one of {', '.join(REASONS)}, not {kind!r}")
    head = bytes(data[:HEAD])
    try:
        found = _probe(kind, head, data)
    except (StructError, IndexError) as error:
        raise SampleError(REASONS[kind], f"its header is cut off or broken: {error}") from error
    if found is None:
        raise SampleError(REASONS[kind], _what_else(kind, head, len(data)))
    size = found.size
    if kind != "audio" and not (0 < size.width <= MAX_SIDE and 0 < size.height <= MAX_SIDE):
        raise SampleError(REASONS[kind], f"its header says {size.width} x {size.height} pixels")
    return found


def _probe(kind: str, head: bytes, data: bytes | memoryview) -> Medium | None:
    if kind == "audio":
        ext = audio_format(head)
        return None if ext is None else Medium(ext, audio_size(ext, data))
    ext = picture_format(head)
    if ext in ("gif", "webp", "avif") or (ext is not None and kind == "image"):
        sides = picture_size(ext, data)
        frames = 1 if kind == "image" else 0
        return sides and Medium(ext, MediaSize(width=sides[0], height=sides[1], num_frames=frames))
    ext = video_format(head)
    if ext is None or kind != "video":
        return None
    size = video_size(ext, data)
    return None if size is None else Medium(ext, _sane(size))


def _what_else(kind: str, head: bytes, num_bytes: int) -> str:
    ext = video_format(head) if kind == "video" else None
    if ext is None:
        return f"{num_bytes} bytes that begin with {head[:16]!r}"
    return f"{num_bytes} bytes of {ext} without a video track: only sound, or cut off before it"


def _sane(size: MediaSize) -> MediaSize:
    """Return the size without numbers that no index can hold: a broken header may say anything."""
    good = (
        0 <= size.num_frames <= MAX_SIDE
        and isfinite(size.fps)
        and isfinite(size.duration_s)
        and size.fps >= 0
        and size.duration_s >= 0
    )
    return size if good else MediaSize(width=size.width, height=size.height, num_frames=0)
