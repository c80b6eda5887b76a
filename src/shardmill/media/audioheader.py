"""Sounds by their first bytes; only WAV tells its duration at a fixed place."""

from __future__ import annotations

from struct import unpack_from

from shardmill.model.sample import MediaSize

UNKNOWN = MediaSize(num_frames=0)


def audio_format(head: bytes) -> str | None:
    """Return the extension of the sound format that these first bytes begin, or None."""
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"fLaC":
        return "flac"
    if head[:4] == b"OggS":
        return "ogg"
    if head[4:8] == b"ftyp":
        return "m4a"
    # An MPEG frame begins with eleven ones; layer 0 is reserved, so it is no sound.
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
