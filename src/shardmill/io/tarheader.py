"""The 512 bytes before a member: POSIX ustar, mode 0644, owner 0, time 0.

    0 name 100 | 100 mode 8 | 108 uid 8 | 116 gid 8 | 124 size 12 | 136 mtime 12 | 148 sum 8
    156 type 1 | 157 link 100 | 257 "ustar\\0" "00" | 265 user 32 | 297 group 32 | 329 device 16
    345 prefix 155 | 500 zeros 12

Numbers are octal text. A name of up to 255 bytes that can be cut at a '/' goes to prefix and name;
a longer one, and a size from 8 GiB on, goes to a PAX header (type 'x') in front.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.io.weave import Column, cells, constant, filling

BLOCK = 512
MAX_OCTAL_SIZE = 8 << 30
MAX_NAME_BYTES = 100
END_OF_TAR = bytes(2 * BLOCK)

_MODE_TO_SIZE = b"0000644\0" + b"0000000\0" * 2
_MTIME = b"00000000000\0"
_OWNER = bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2
_FIXED_SUM = sum(_MODE_TO_SIZE + _MTIME + _OWNER) + 8 * ord(" ")
_PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]


def padding(size: int) -> bytes:
    """Return the zeros that fill the last block of a member of this size."""
    return _PADDING[size % BLOCK]


def padded(size: int) -> int:
    """Return the bytes that a content of this size takes in the tar."""
    return size + -size % BLOCK


def member_header(name: bytes, size: int) -> bytes:
    """Return all header blocks of a regular file: one, or three with a PAX header in front."""
    if len(name) <= MAX_NAME_BYTES and size < MAX_OCTAL_SIZE:
        return ustar_header(name, b"", size, b"0")
    split = _split(name)
    if split is not None and size < MAX_OCTAL_SIZE:
        return ustar_header(split[1], split[0], size, b"0")
    records = [] if split else [_pax_record(b"path", name)]
    if size >= MAX_OCTAL_SIZE:
        records.append(_pax_record(b"size", b"%d" % size))
        size = 0
    prefix, short = split or (b"", name[:MAX_NAME_BYTES])
    content = b"".join(records)
    pax = ustar_header(b"././@PaxHeader", b"", len(content), b"x") + content
    return pax + padding(len(content)) + ustar_header(short, prefix, size, b"0")


def ustar_header(name: bytes, prefix: bytes, size: int, kind: bytes) -> bytes:
    """Return one header block; name and prefix must fit."""
    digits = b"%011o\0" % size
    checksum = _FIXED_SUM + sum(name) + sum(prefix) + sum(digits) + kind[0]
    return b"%b%b%b%b%06o\0 %b%b%b" % (
        name.ljust(MAX_NAME_BYTES, b"\0"),
        _MODE_TO_SIZE,
        digits,
        _MTIME,
        checksum,
        kind,
        _OWNER,
        prefix.ljust(167, b"\0"),
    )


def header_columns(keys: Column, ending: bytes, sizes: NDArray[np.int64]) -> list[Column]:
    """Return the headers of the members KEY + ending, to be woven; names and sizes must fit."""
    num_rows = len(keys)
    lengths = keys.lengths + len(ending)
    digits = _octal(sizes, 11)
    sums = (
        _FIXED_SUM + sum(ending) + ord("0") + _byte_sums(keys) + digits.sum(axis=1, dtype=np.int64)
    )
    return [
        keys,
        constant(ending, num_rows),
        filling(MAX_NAME_BYTES - lengths),
        constant(_MODE_TO_SIZE, num_rows),
        cells(digits),
        constant(b"\0" + _MTIME, num_rows),
        cells(_octal(sums, 6)),
        constant(b"\0 0" + _OWNER + bytes(167), num_rows),
    ]


def _octal(numbers: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Return the octal digits of each number, as a row of text."""
    shifts = 3 * np.arange(width - 1, -1, -1)
    return ((numbers[:, None] >> shifts & 7) + ord("0")).astype(np.uint8)


def _byte_sums(column: Column) -> NDArray[np.int64]:
    before = np.concatenate([[0], np.cumsum(column.data, dtype=np.int64)])
    sums: NDArray[np.int64] = before[column.starts + column.lengths] - before[column.starts]
    return sums


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    if len(name) <= MAX_NAME_BYTES:
        return b"", name
    cut = name.rfind(b"/", 0, 156)
    if cut <= 0 or not 0 < len(name) - cut - 1 <= MAX_NAME_BYTES:
        return None
    return name[:cut], name[cut + 1 :]


def _pax_record(key: bytes, value: bytes) -> bytes:
    # A record is "LENGTH KEY=VALUE\n" and LENGTH counts its own digits.
    body = len(key) + len(value) + 3
    length = body + len(str(body))
    if len(str(length)) != len(str(body)):
        length = body + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)
