"""What a medium is and how large, from its first bytes: the name it was given is not believed.

A text file named .jpg is no image, whatever its suffix says; a PNG named .jpg is a PNG. Images
(JPEG, PNG, GIF, WebP, BMP, TIFF, AVIF) and audio are read here, videos by `containers`. Nothing is
decoded.

Widths and heights are those of the image as displayed: turned when EXIF says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from struct import error as StructError
from struct import unpack_from
from typing import TypeAlias

from shardmill.errors import ConfigError, SampleError, foreign
from shardmill.media.containers import (
    Bytes,
    boxes,
    first_box,
    riff_chunks,
    video_format,
    video_size,
)
from shardmill.model.sample import MediaSize
from shardmill.storage.text import mistaken_for

Size: TypeAlias = tuple[int, int]

HEAD = 256  # MPEG transport streams repeat their mark after 188 bytes
MAX_SIDE = (1 << 31) - 1  # the index holds sizes as 32 bits
REASONS = {"image": "not an image", "video": "not a video", "audio": "not audio"}
ORIENTATION_TAG = 0x0112
# Start-of-frame markers; C4, C8 and CC share their range but mean tables.
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers without a length behind them: TEM, the restarts and SOI.
BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD9)))


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
    with foreign(REASONS[kind], StructError, IndexError):
        found = _probe(kind, head, data)
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
        sides = IMAGE_SIZES[ext](data)
        frames = 1 if kind == "image" else 0
        return sides and MediaHeader(
            ext, MediaSize(width=sides[0], height=sides[1], num_frames=frames)
        )
    ext = video_format(head)
    if ext is None or kind != "video":
        return None
    size = video_size(ext, data)
    if size is None:
        return None
    # A broken header may say anything: numbers that no index can hold count as unknown.
    is_sane = size.num_frames <= MAX_SIDE and isfinite(size.fps) and isfinite(size.duration_s)
    if not is_sane or min(size.num_frames, size.fps, size.duration_s) < 0:
        size = MediaSize(width=size.width, height=size.height, num_frames=0)
    return MediaHeader(ext, size)


def _what_else(kind: str, head: bytes, num_bytes: int) -> str:
    if what := mistaken_for(head):
        return f"{num_bytes} bytes, it is {what}"
    ext = video_format(head) if kind == "video" else None
    if ext is None:
        return f"{num_bytes} bytes that begin like no {kind} known here"
    return f"{num_bytes} bytes of {ext} without a video track: only audio, or cut off before it"


def image_format(head: bytes) -> str | None:
    """Return the extension of the image format that these first 16 bytes begin, or None."""
    if head.startswith(b"\xff\xd8\xff"):
        return "jpg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    # Two letters are little: the four reserved bytes must be zero as well.
    if head.startswith(b"BM") and len(head) >= 16 and head[6:10] == bytes(4):
        return "bmp"
    if head.startswith((b"II*\0", b"MM\0*")):
        return "tif"
    if head[4:12] in (b"ftypavif", b"ftypavis", b"ftypmif1"):
        return "avif"
    return None


def _jpeg(data: Bytes) -> Size | None:
    at, orientation = 2, 1
    while True:
        if data[at] != 0xFF:
            return None
        while data[at] == 0xFF:  # a marker may be padded with any number of them
            at += 1
        marker = data[at]
        at += 1
        if marker in BARE_MARKERS:
            continue
        (length,) = unpack_from(">H", data, at)
        if marker in FRAME_MARKERS:
            height, width = unpack_from(">HH", data, at + 3)
            return _turned((width, height), orientation)
        if marker == 0xE1 and data[at + 2 : at + 8] == b"Exif\0\0":
            orientation = _exif_orientation(data[at + 8 : at + length])
        # Pixels or the end came before a size; a length counts its own two bytes.
        if marker in (0xD9, 0xDA) or length < 2:
            return None
        at += length


def _png(data: Bytes) -> Size | None:
    if data[12:16] != b"IHDR":
        return None
    size = unpack_from(">II", data, 16)
    # The orientation may come after the pixels, so all chunks are passed over.
    at = 8
    while at + 8 <= len(data):
        length, kind = unpack_from(">I4s", data, at)
        if kind == b"eXIf":
            return _turned(size, _exif_orientation(data[at + 8 : at + 8 + length]))
        at += 12 + length
    return size


def _gif(data: Bytes) -> Size:
    width, height = unpack_from("<HH", data, 6)
    return width, height


def _webp(data: Bytes) -> Size | None:
    kind = bytes(data[12:16])
    if kind == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            return None
        # 14 bits of size each; the two above tell how players should scale.
        width, height = unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        if data[20] != 0x2F:
            return None
        (bits,) = unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        size = (_u24(data, 24) + 1, _u24(data, 27) + 1)
        has_exif = data[20] & 0x08
        exif = dict(riff_chunks(data, 12)).get(b"EXIF", b"") if has_exif else b""
        # Some writers put JPEG's mark before the block, though the format has none there.
        return _turned(size, _exif_orientation(bytes(exif).removeprefix(b"Exif\0\0")))
    return None


def _bmp(data: Bytes) -> Size:
    (header_bytes,) = unpack_from("<I", data, 14)
    if header_bytes == 12:
        width, height = unpack_from("<HH", data, 18)
    else:
        width, height = unpack_from("<ii", data, 18)
    # A negative height means that the rows are stored from top to bottom.
    return width, abs(height)


def _tiff(data: Bytes) -> Size | None:
    tags = dict(_tiff_tags(data))
    if 256 not in tags or 257 not in tags:
        return None
    return _turned((tags[256], tags[257]), tags.get(ORIENTATION_TAG, 1))


def _avif(data: Bytes) -> Size | None:
    """Return the largest `ispe` of the item properties, turned by `irot`.

    A file also holds the sizes of its alpha plane, its tiles and its thumbnail.
    """
    # `meta` has four bytes of version and flags before its boxes.
    properties = first_box(first_box(data, b"meta")[4:], b"iprp", b"ipco")
    sizes, turns = [], 0
    for kind, body in boxes(properties):
        if kind == b"ispe":
            sizes.append(unpack_from(">II", body, 4))
        elif kind == b"irot":
            turns = body[0] & 3
    if not sizes:
        return None
    width, height = max(sizes)
    return (height, width) if turns & 1 else (width, height)


def _exif_orientation(exif: Bytes) -> int:
    # A broken EXIF block does not spoil the image: every viewer ignores it.
    if len(exif) < 8 or exif[:4] not in (b"II*\0", b"MM\0*"):
        return 1
    return dict(_tiff_tags(exif)).get(ORIENTATION_TAG, 1)


def _tiff_tags(data: Bytes) -> Iterator[tuple[int, int]]:
    """Yield (tag, value) of the whole numbers in the first directory, as far as it is there."""
    order = "<" if data[:1] == b"I" else ">"
    (at,) = unpack_from(f"{order}I", data, 4)
    if at + 2 > len(data):
        return
    (count,) = unpack_from(f"{order}H", data, at)
    for entry in range(at + 2, min(at + 2 + 12 * count, len(data) - 11), 12):
        tag, kind = unpack_from(f"{order}HH", data, entry)
        if kind in (3, 4):  # u16 and u32; a single value stands in the entry itself
            (value,) = unpack_from(f"{order}{'H' if kind == 3 else 'I'}", data, entry + 8)
            yield tag, value


def _turned(size: Size, orientation: int) -> Size:
    # Orientations 5 to 8 turn the image by a quarter.
    return (size[1], size[0]) if 5 <= orientation <= 8 else size


def _u24(data: Bytes, at: int) -> int:
    return data[at] | data[at + 1] << 8 | data[at + 2] << 16


# (width, height) as displayed, or None if the header holds none. One that is cut off raises
# `struct.error` or `IndexError`, which `probe` turns into a reject.
IMAGE_SIZES: dict[str, Callable[[Bytes], Size | None]] = {
    "jpg": _jpeg,
    "png": _png,
    "gif": _gif,
    "webp": _webp,
    "bmp": _bmp,
    "tif": _tiff,
    "avif": _avif,
}


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
    bytes_per_s = 0
    for kind, body in riff_chunks(data, 12) if format == "wav" else ():
        if kind == b"fmt ":
            (bytes_per_s,) = unpack_from("<I", body, 8)
        elif kind == b"data":
            seconds = len(body) / bytes_per_s if bytes_per_s else 0.0
            return MediaSize(num_frames=0, duration_s=seconds)
    return MediaSize(num_frames=0)
