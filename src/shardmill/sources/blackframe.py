"""A black picture of any size: a PNG of one bit a pixel, the same bytes on every machine.

The pixels are not compressed: compressors differ from version to version, and 640 x 360 pixels are
29 kB as they are.
"""

from __future__ import annotations

import struct
import zlib

from shardmill.errors import SampleError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PIXELS = 1 << 27
MAX_BLOCK = 0xFFFF  # of deflate, stored


def black_frame(width: int, height: int) -> bytes:
    """Return a black picture; a size that no picture has is a `SampleError`."""
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise SampleError("bad size of a black frame", f"{width} x {height} pixels")
    one_bit_grey = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = bytes((1 + (width + 7) // 8) * height)
    return b"".join(
        [
            SIGNATURE,
            _chunk(b"IHDR", one_bit_grey),
            _chunk(b"IDAT", _stored(rows)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def _stored(data: bytes) -> bytes:
    """Return a zlib stream of blocks that are stored as they are."""
    parts = [b"\x78\x01"]
    for start in range(0, len(data), MAX_BLOCK):
        block = data[start : start + MAX_BLOCK]
        is_last = start + MAX_BLOCK >= len(data)
        parts += [struct.pack("<BHH", is_last, len(block), len(block) ^ MAX_BLOCK), block]
    return b"".join([*parts, struct.pack(">I", zlib.adler32(data))])
