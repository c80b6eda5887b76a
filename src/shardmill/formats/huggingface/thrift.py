"""Thrift's compact protocol, as much of it as the headers and the footer of parquet need.

A value is its type and its bytes. A field of a struct is one byte, (number - number before) << 4
| type, and the value; a zero ends the struct. Whole numbers are zigzag varints: -1, 1, -2 are 1,
2, 3, with seven bits a byte, the lowest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = tuple[int, bytes]

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
SHORT_LIST = 15  # a list of so many, or more, has its length in a varint


def varint(number: int) -> bytes:
    """Return a number from zero on with seven bits a byte."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def i32(number: int) -> Value:
    """Return a number of 32 bits; enums are such."""
    return I32, _zigzag(number)


def i64(number: int) -> Value:
    """Return a number of 64 bits."""
    return I64, _zigzag(number)


def binary(content: bytes | str) -> Value:
    """Return bytes, or a text as UTF-8."""
    content = content.encode() if isinstance(content, str) else content
    return BINARY, varint(len(content)) + content


def listed(items: Sequence[Value]) -> Value:
    """Return a list of values, which are all of one type."""
    kind = items[0][0] if items else STRUCT
    size = len(items)
    head = bytes([size << 4 | kind]) if size < SHORT_LIST else bytes([0xF0 | kind]) + varint(size)
    return LIST, head + b"".join(content for _, content in items)


def struct(fields: Mapping[int, Value | None]) -> Value:
    """Return a struct of fields by number, in rising order; those that are None are left out."""
    found, before = bytearray(), 0
    for number, value in fields.items():
        if value is not None:
            kind, content = value
            found += bytes([(number - before) << 4 | kind]) + content
            before = number
    return STRUCT, bytes(found) + b"\0"


def _zigzag(number: int) -> bytes:
    return varint(2 * number if number >= 0 else -2 * number - 1)
