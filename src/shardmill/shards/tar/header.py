"""What stands before the bytes of a member in a tar: its name, and 512 bytes of header.

**Names.** The key is the path up to the first dot after the last '/', the extension is the rest.
Layout "dotted" writes medium `0.jpg` of sample `K` as `K.0.jpg`, which stock webdataset groups;
layout "dashed" writes it as `K-0.jpg`, which joins `K.json` by the interleave rule (`tar.read`).

**Headers** are POSIX ustar, mode 0644, owner 0, time 0.

    0 name 100 | 100 mode 8 | 108 uid 8 | 116 gid 8 | 124 size 12 | 136 mtime 12 | 148 sum 8
    156 type 1 | 157 link 100 | 257 "ustar\0" "00" | 265 user 32 | 297 group 32 | 329 device 16
    345 prefix 155 | 500 zeros 12

Numbers are octal text. A name of up to 255 bytes that can be cut at a '/' goes to prefix and name;
a longer one, and a size from 8 GiB on, goes to a PAX header (type 'x') in front.

The functions that parse the fields of foreign headers raise `ValueError` with the problem; who
calls them knows the file, the member and the offset.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple
from zlib import adler32

from shardmill.errors import SampleError

Layout = Literal["dotted", "dashed"]
MAX_KEY_BYTES = 200
MAX_EXT_BYTES = 100
NOTE = re.compile(r"__[^/]*__(/|$)")
BLOCK = 512
MAX_OCTAL_SIZE = 8 << 30
MAX_NAME_BYTES = 100
END_OF_TAR = bytes(2 * BLOCK)
# The halves of adler32 are sums modulo this prime; a header sums up to at most 2 * 65521.
ADLER_MODULUS = 65521
USTAR = b"ustar\0"
_MODE_TO_SIZE = b"0000644\0" + b"0000000\0" * 2
_MTIME = b"00000000000\0"
_OWNER = bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2
_FIXED_SUM = sum(_MODE_TO_SIZE + _MTIME + _OWNER) + 8 * ord(" ")
_PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]


def check_key(key: str) -> None:
    """Raise `SampleError` unless a key can be a member's name in every reader of tars."""
    if not key:
        raise SampleError("bad key", "it is empty")
    if "." in key:
        raise SampleError("bad key", f"{key!r} has a dot, at which readers would cut it")
    if key[0] == "/" or key[-1] == "/" or "//" in key:
        raise SampleError("bad key", f"{key!r} has an empty path part")
    if num_bytes(key) > MAX_KEY_BYTES:
        raise SampleError("bad key", f"{key[:50]!r}... is longer than {MAX_KEY_BYTES} bytes")
    if not key.isprintable():
        raise SampleError("bad key", f"{key!r} has characters that cannot be printed")
    if is_note(key):
        raise SampleError("bad key", f"{key!r} is a note to readers of tars, which pass it over")


def is_note(key: str) -> bool:
    """Say whether stock webdataset passes over members of this name: `__anything__`."""
    return key[:2] == "__" and NOTE.match(key) is not None


@lru_cache(maxsize=1024)
def check_ext(ext: str) -> None:
    """Raise `SampleError` unless an extension is plain text such as "json" or "0.jpg"."""
    parts = ext.split(".")
    if not all(parts) or "/" in ext or num_bytes(ext) > MAX_EXT_BYTES or not ext.isprintable():
        raise SampleError("bad extension", f"{ext[:120]!r} cannot end the name of a member")


def num_bytes(text: str) -> int:
    """Return the UTF-8 length; lone surrogates, which no tar can hold, are a `SampleError`."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise SampleError("bad name", f"{text!r} is not UTF-8: {error.reason}") from error


def member_name(key: str, ext: str, layout: Layout = "dotted") -> str:
    """Return the name of a member; only media with a number take the dash."""
    if layout == "dashed" and "." in ext:
        return f"{key}-{ext}"
    return f"{key}.{ext}"


def split_name(name: str) -> tuple[str, str]:
    """Return (key, extension); a name without a dot after its last '/' has extension ''."""
    dot = name.find(".", name.rfind("/") + 1)
    return (name, "") if dot < 0 else (name[:dot], name[dot + 1 :])


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


class Override(NamedTuple):
    """What a PAX or GNU header says instead of the member's own header."""

    path: str | None = None
    size: int | None = None
    link: str | None = None


def parse_number(field: bytes) -> int:
    """Return a number that is octal text or, with the top bit set, big-endian binary."""
    if field[0] & 0x80:
        if field[0] & 0x40:
            raise ValueError("a size below zero")
        return int.from_bytes(field, "big") & ~(0x80 << 8 * (len(field) - 1))
    digits = field.strip(b" \0")
    if not digits:
        return 0
    if not digits.isdigit():
        raise ValueError(f"{digits!r} where a number should be")
    return int(digits, 8)


def has_right_sum(header: bytes) -> bool:
    """Say whether a header's checksum is right, with bytes taken as unsigned or, once, signed."""
    field = header[148:156]
    try:
        stored = parse_number(field)
    except ValueError:
        return False
    # The low half of adler32 is 1 + the sum of all bytes, ten times faster than sum().
    quick = (adler32(header) & 0xFFFF) - (adler32(field) & 0xFFFF) + 8 * ord(" ")
    if (quick - stored) % ADLER_MODULUS == 0:
        return True
    signed = sum(byte - 256 if byte > 127 else byte for byte in header)
    return signed - sum(field) + 8 * ord(" ") == stored


def header_path(header: bytes) -> str:
    """Return the name in a header; the prefix counts in POSIX headers only."""
    name = cut_text(header[:100])
    if header[257:263] == USTAR and header[345]:
        return f"{cut_text(header[345:500])}/{name}"
    return name


def cut_text(field: bytes) -> str:
    """Return the text before the first zero byte; bytes that are not UTF-8 are kept escaped."""
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def pax_override(content: bytes, before: Override) -> Override:
    """Return `before` with what PAX records ("LENGTH KEY=VALUE\\n") say of path, link and size."""
    if b"path=" not in content and b"size=" not in content and b"GNU.sparse" not in content:
        return before  # the usual case: only times
    for key, value in _pax_records(content):
        if key == b"path":
            before = before._replace(path=cut_text(value))
        elif key == b"linkpath":
            before = before._replace(link=cut_text(value))
        elif key == b"size":
            if not value.isdigit() or len(value) > 20:
                raise ValueError(f"a PAX size {value[:30]!r}")
            before = before._replace(size=int(value))
        elif key.startswith(b"GNU.sparse"):
            raise ValueError("a sparse file: write it again without holes (tar without --sparse)")
    return before


def _pax_records(content: bytes) -> list[tuple[bytes, bytes]]:
    records, at = [], 0
    while at < len(content) and content[at]:
        digits = content[at : at + 8].partition(b" ")[0]
        body, end = at + len(digits) + 1, at + int(digits) if digits.isdigit() else 0
        key, equals, value = content[body : end - 1].partition(b"=")
        if not body < end <= len(content) or not equals or content[end - 1] != ord("\n"):
            raise ValueError(f"a broken PAX record {content[at : at + 40]!r}")
        records.append((key, value))
        at = end
    return records
