"""Keys and names made from paths and columns: no dot, no climbing, nothing a tar cannot hold."""

from __future__ import annotations

import re

import xxhash

from shardmill.errors import SampleError
from shardmill.shards.tar.names import MAX_KEY_BYTES, check_key, is_note

UNSAFE = re.compile(r"[.\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# A row number or "~2" may follow a name.
MAX_NAME_BYTES = MAX_KEY_BYTES - 24


def name_from_path(path: str) -> str:
    """Return a relative path as a name: unsafe characters become `_`, a long one ends in a hash.

    Different paths may give one name ("a.b" and "a_b"); `unique` tells them apart.
    """
    parts = [UNSAFE.sub("_", part) for part in path.split("/") if part not in ("", ".")]
    name = "".join(c if c.isprintable() else "_" for c in "/".join(parts))
    if is_note(f"{name}-0"):
        # A folder such as __pycache__: stock readers of tars would pass over what it holds.
        name = f"_{name.lstrip('_')}"
    raw = name.encode()
    if len(raw) <= MAX_NAME_BYTES:
        return name
    head = raw[: MAX_NAME_BYTES - 17].decode(errors="ignore").rstrip("/")
    return f"{head}~{xxhash.xxh3_64_hexdigest(raw)}"


def unique(name: str, taken: set[str]) -> str:
    """Return `name`, or `name~2`, `name~3`, ... if it is taken, and take it."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}~{number}"
    taken.add(found)
    return found


def key_from_value(value: object) -> str:
    """Return a user's own key; only its dots change, anything unsafe is a `SampleError`."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SampleError("bad key", f"a key must be text or a whole number, got {value!r:.100}")
    key = str(value).replace(".", "_")
    check_key(key)
    return key
