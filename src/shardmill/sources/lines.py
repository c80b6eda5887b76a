"""One row a line: JSON objects (jsonl) or plain text; a last line without newline counts.

Rows are numbered like lines, from 0; blank lines have a number but are no rows. A line longer than
the limit is found and passed over in small pieces, never held in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from shardmill.errors import SampleError
from shardmill.sources.records import ByteReader, Record, place, too_long

BLANK = b" \t\r\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PIECE = 1 << 20


def line_records(file: ByteReader, number: int, offset: int, max_bytes: int) -> Iterator[Record]:
    """Yield a record for each line that is not blank; the file stands at line `number`."""
    while line := file.readline(max_bytes + 1):
        start, size = offset, len(line)
        whole = size <= max_bytes or line.endswith(b"\n")
        while not line.endswith(b"\n") and not whole and (line := file.readline(PIECE)):
            size += len(line)
        offset += size
        if not whole:
            yield too_long(Record(number, start, size), max_bytes)
        elif line.strip(BLANK):
            yield Record(number, start, size, line)
        number += 1


def json_fields(record: Record) -> dict[str, Any]:
    """Return the JSON object of a record; NaN, which Python writes, becomes None."""
    value = _parse(record)
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise SampleError("row is not an object", f"{place(record)} is a {kind}")
    return value


def text_fields(record: Record) -> dict[str, Any]:
    """Return a line of plain text as the field `text`."""
    return {"text": _decode(record).rstrip("\r\n")}


def _parse(record: Record) -> Any:
    raw = record.raw.removeprefix(BYTE_ORDER_MARK)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        text = _decode(record)
        if b"NaN" not in raw and b"Infinity" not in raw:
            raise SampleError("not JSON", f"{place(record)}: {error}") from error
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise SampleError("not JSON", f"{place(record)}: {error}") from error


def _decode(record: Record) -> str:
    raw = record.raw.removeprefix(BYTE_ORDER_MARK)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        at = record.offset + len(record.raw) - len(raw) + error.start
        raise SampleError("not UTF-8", f"{place(record)}: byte {at}: {error.reason}") from error
