"""Width and height of an image from its header, as displayed: turned when EXIF says so.

JPEG, PNG, GIF, WebP (VP8, VP8L, VP8X), BMP, TIFF and AVIF are read, nothing is decoded. A header
that is cut off raises `struct.error` or `IndexError`; the caller says which image it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import unpack_from
from typing import TypeAlias

Size: TypeAlias = tuple[int, int]
Bytes: TypeAlias = bytes | memoryview

ORIENTATION_TAG = 0x0112
# Start-of-frame markers; C4, C8 and CC share their range but mean tables.
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD9)))


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
    if head.startswith(b"BM") and len(head) >= 16 and head[6:10] == bytes(4):
        return "bmp"
    if head.startswith((b"II*\0", b"MM\0*")):
        return "tif"
    if head[4:12] in (b"ftypavif", b"ftypavis", b"ftypmif1"):
        return "avif"
    return None


def image_size(format: str, data: Bytes) -> Size | None:
    """Return (width, height) as displayed, or None if the header holds none."""
    return READERS[format](data)


def _jpeg(data: Bytes) -> Size | None:
    at, orientation = 2, 1
    while True:
        if data[at] != 0xFF:
            return None
        while data[at] == 0xFF:
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
        width, height = unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        if data[20] != 0x2F:
            return None
        (bits,) = unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        size = (_u24(data, 24) + 1, _u24(data, 27) + 1)
        return _turned(size, _webp_orientation(data) if data[20] & 0x08 else 1)
    return None


def _webp_orientation(data: Bytes) -> int:
    at = 12
    while at + 8 <= len(data):
        kind, length = unpack_from("<4sI", data, at)
        if kind == b"EXIF":
            exif = bytes(data[at + 8 : at + 8 + length])
            return _exif_orientation(exif.removeprefix(b"Exif\0\0"))
        at += 8 + length + (length & 1)
    return 1


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
    """Return the largest `ispe` of the item properties, turned by `irot`."""
    properties: Bytes = b""
    for kind, body in boxes(data):
        if kind == b"meta":
            properties = _inside(_inside(body[4:], b"iprp"), b"ipco")
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


def boxes(data: Bytes) -> Iterator[tuple[bytes, Bytes]]:
    """Yield (type, content) of the boxes of an ISO media file; stops at one that is cut off."""
    view, at = memoryview(data), 0
    while at + 8 <= len(view):
        size, kind = unpack_from(">I4s", view, at)
        head = 8
        if size == 1:
            if at + 16 > len(view):
                return
            (size,), head = unpack_from(">Q", view, at + 8), 16
        elif size == 0:
            size = len(view) - at
        if size < head:
            return
        yield kind, view[at + head : at + size]
        at += size


def _inside(data: Bytes, wanted: bytes) -> Bytes:
    return next((body for kind, body in boxes(data) if kind == wanted), b"")


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
        if kind in (3, 4):
            (value,) = unpack_from(f"{order}{'H' if kind == 3 else 'I'}", data, entry + 8)
            yield tag, value


def _turned(size: Size, orientation: int) -> Size:
    # Orientations 5 to 8 turn the image by a quarter.
    return (size[1], size[0]) if 5 <= orientation <= 8 else size


def _u24(data: Bytes, at: int) -> int:
    return data[at] | data[at + 1] << 8 | data[at + 2] << 16


READERS: dict[str, Callable[[Bytes], Size | None]] = {
    "jpg": _jpeg,
    "png": _png,
    "gif": _gif,
    "webp": _webp,
    "bmp": _bmp,
    "tif": _tiff,
    "avif": _avif,
}
