"""Walks the run of plain members that a WebDataset tar mostly is, fast.

Plain means: a ustar header of type '0' with an octal size and a right checksum, whose content lies
inside the file, perhaps behind one PAX header that says nothing of path or size. The first member
that is anything else, damage included, ends the run: tarread.py decides what it means. The compiled
scanner of local files and the one below find the same members.
"""

from __future__ import annotations

from typing import Protocol
from zlib import adler32

from shardmill.io.blob import Blob, LocalBlob
from shardmill.io.tarfields import ADLER_MODULUS, header_path
from shardmill.io.tarheader import BLOCK

try:
    from shardmill.io import _tarscan  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _tarscan = None

MAX_PAX_BYTES = 2048
REGULAR, PAX = b"0x"
ENDS = b"\0 "


class Columns(Protocol):
    """Where members are recorded, one entry in each list."""

    names: list[str]
    starts: list[int]
    offsets: list[int]
    sizes: list[int]


def scan_plain(blob: Blob, at: int, found: Columns) -> int:
    """Record the plain members from `at` on; return the offset of the first that is not plain."""
    if _tarscan is not None and isinstance(blob, LocalBlob):
        columns = found.names, found.starts, found.offsets, found.sizes
        return int(_tarscan.scan(blob.fileno(), at, blob.num_bytes, *columns))
    return scan_in_python(blob, at, found)


def scan_in_python(blob: Blob, at: int, found: Columns) -> int:
    """Do what the compiled scanner does, for any blob."""
    num_bytes, window = blob.num_bytes, blob.window
    buffer, base, start = b"", at, at
    while True:
        skip = at - base
        header = buffer[skip : skip + BLOCK]
        if len(header) < BLOCK:
            if at + BLOCK > num_bytes:
                return start
            buffer, base, skip = blob.read(at, min(window, num_bytes - at)), at, 0
            header = buffer[:BLOCK]
        size, kind = _size_if_sound(header), header[156]
        if size < 0 or size > num_bytes - at - BLOCK:
            return start
        end = at + BLOCK + size + -size % BLOCK
        if kind == PAX and at == start:
            skip += BLOCK
            if size > MAX_PAX_BYTES or not _is_harmless(buffer[skip : skip + size], size):
                return start
            at = end
            continue
        if kind != REGULAR or header[257:262] != b"ustar" or end > num_bytes:
            return start
        found.names.append(header_path(header))
        found.starts.append(start)
        found.offsets.append(at + BLOCK)
        found.sizes.append(size)
        at = start = end


def _size_if_sound(header: bytes) -> int:
    digits, stored = header[124:135], header[148:154]
    if not (digits.isdigit() and stored.isdigit() and header[135] in ENDS and header[154] in ENDS):
        return -1
    # The low half of adler32 is 1 + the sum of all bytes: see tarfields.py.
    quick = (adler32(header) & 0xFFFF) - (adler32(header[148:156]) & 0xFFFF) + 8 * ord(" ")
    try:
        sound = (quick - int(stored, 8)) % ADLER_MODULUS == 0
        return int(digits, 8) if sound else -1
    except ValueError:  # an 8 or a 9
        return -1


def _is_harmless(content: bytes, size: int) -> bool:
    return (
        len(content) == size
        and b"path=" not in content
        and b"size=" not in content
        and b"GNU.sparse" not in content
    )
