"""What a row holds besides its document, as values that JSON can store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

from shardmill.errors import SampleError

MAX_DEPTH = 64
LARGEST = 1 << 63


def jsonable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as JSON values; bytes are left out, dates become text, NaN None."""
    return {str(k): _value(v, 1) for k, v in fields.items() if not isinstance(v, bytes)}


def _value(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if depth > MAX_DEPTH:
        raise SampleError("nested too deep", f"more than {MAX_DEPTH} levels in a field")
    if isinstance(value, int):
        return value if -LARGEST <= value < LARGEST else str(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _value(v, depth + 1) for k, v in value.items() if not _is_bytes(v)}
    if isinstance(value, list | tuple):
        return [_value(item, depth + 1) for item in value if not _is_bytes(item)]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    kind = type(value).__name__
    raise SampleError("cannot be stored", f"a field holds a {kind}: {value!r:.100}")


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)
