"""What single fields of foreign tar headers mean: numbers, names, checksums and PAX records.

Everything here is a pure function that raises `ValueError` with the problem; who calls knows the
file, the member and the offset.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import adler32

ADLER_MODULUS = 65521
USTAR = b"ustar\0"


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
