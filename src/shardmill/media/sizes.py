"""What a medium is and how large, from its first bytes: the name it was given is not believed.

A text file named .jpg is no image, whatever its suffix says; a PNG named .jpg is a PNG. Headers of
images and videos are read by `image.header` and `video.header`, those of audio here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from struct import error as StructError
from struct import unpack_from

from shardmill.errors import ConfigError, SampleError
from shardmill.media.image.header import image_format, image_size
from shardmill.media.video.header import video_format, video_size
from shardmill.model.sample import MediaSize

UNKNOWN = MediaSize(num_frames=0)
HEAD = 256
MAX_SIDE = (1 << 31) - 1
REASONS = {"image": "not an image", "video": "not a video", "audio": "not audio"}


@dataclass(frozen=True, slots=True)
class MediaHeader:
    """What a medium's header says: the extension of its format, and its size."""

    ext: str
    size: MediaSize


def probe(kind: str, data: bytes | memoryview) -> MediaHeader:
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


def _probe(kind: str, head: bytes, data: bytes | memoryview) -> MediaHeader | None:
    if kind == "audio":
        ext = audio_format(head)
        return None if ext is None else MediaHeader(ext, audio_size(ext, data))
    ext = image_format(head)
    if ext in ("gif", "webp", "avif") or (ext is not None and kind == "image"):
        sides = image_size(ext, data)
        frames = 1 if kind == "image" else 0
        return sides and MediaHeader(
            ext, MediaSize(width=sides[0], height=sides[1], num_frames=frames)
        )
    ext = video_format(head)
    if ext is None or kind != "video":
        return None
    size = video_size(ext, data)
    return None if size is None else MediaHeader(ext, _sane(size))


def _what_else(kind: str, head: bytes, num_bytes: int) -> str:
    ext = video_format(head) if kind == "video" else None
    if ext is None:
        return f"{num_bytes} bytes that begin with {head[:16]!r}"
    return f"{num_bytes} bytes of {ext} without a video track: only audio, or cut off before it"


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


def audio_format(head: bytes) -> str | None:
    """Return the extension of the audio format that these first bytes begin, or None."""
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"fLaC":
        return "flac"
    if head[:4] == b"OggS":
        return "ogg"
    if head[4:8] == b"ftyp":
        return "m4a"
    # An MPEG frame begins with eleven ones; layer 0 is reserved, so it is no audio.
    is_mpeg = len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x06
    return "mp3" if head[:3] == b"ID3" or is_mpeg else None


def audio_size(format: str, data: bytes | memoryview) -> MediaSize:
    """Return the duration where the header tells it."""
    if format != "wav":
        return UNKNOWN
    at, bytes_per_s = 12, 0
    while at + 8 <= len(data):
        kind, length = unpack_from("<4sI", data, at)
        if kind == b"fmt ":
            (bytes_per_s,) = unpack_from("<I", data, at + 16)
        elif kind == b"data":
            num_bytes = min(length, len(data) - at - 8)
            seconds = num_bytes / bytes_per_s if bytes_per_s else 0.0
            return MediaSize(num_frames=0, duration_s=seconds)
        at += 8 + length + (length & 1)
    return UNKNOWN
