"""Faults that get past the first check: broken JSON is JSON again, and sums are right again.

Plain mutation of a file with a checksum tests the checksum only. `break_file` changes values inside
of JSON, and mends what a reader compares first: the sum of an array file's header (`shards.arrays`)
and those of tar headers.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import xxhash
from mutate import mutate

from shardmill.shards.arrays import MAGIC, PREFIX

# What a field is never expected to be.
ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 31, 1 << 63, 1 << 64, 10**30, 1e308, -0.5, "", ".", "..", "../../x",
    "/etc/passwd", "a\0b", "\ud800", "x" * 5000, "http://[::1/x", [], {}, [[]], {"kind": "x"},
    {"kind": "os:system"}, {"": None},
)  # fmt: skip
TAR_BLOCK = 512


def break_file(content: bytes, rng: Random) -> bytes:
    """Return the content with some faults; pure in its bytes and its generator."""
    header_end = PREFIX + int.from_bytes(content[8:16], "little")
    if content.startswith(MAGIC) and header_end <= len(content) and rng.random() < 0.6:
        return _break_header(content, header_end, rng)
    if content[:1] in b"{[" and content and rng.random() < 0.8:
        lines = content.splitlines(keepends=True)
        at = rng.randrange(len(lines))
        for whole in ([at], range(len(lines))):
            broken = _break_json(b"".join(lines[n] for n in whole), rng)
            if broken is not None:
                return b"".join([*lines[: whole[0]], broken, *lines[whole[-1] + 1 :]])
    broken = mutate(content, rng)
    return _mend_tar(broken) if content[257:262] == b"ustar" and rng.random() < 0.7 else broken


def _break_header(content: bytes, end: int, rng: Random) -> bytes:
    """Change the JSON header, or the numbers behind it, and keep the rest where it was."""
    header, rest = content[PREFIX:end], content[end:]
    if rng.random() < 0.5:
        return content[:end] + mutate(rest, rng)
    broken = _break_json(header, rng) if rng.random() < 0.8 else mutate(header, rng)
    # Spaces keep the offsets of the arrays.
    header = (broken or header).ljust(end - PREFIX)
    length, total = len(header).to_bytes(8, "little"), xxhash.xxh3_64_intdigest(header)
    return MAGIC + length + total.to_bytes(8, "little") + header + rest


def _break_json(content: bytes, rng: Random) -> bytes | None:
    """Return JSON with one to three other values, None if there was no JSON."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    for _ in range(rng.randint(1, 3)):
        value = _replace(value, rng)
    end = b"\n" if content.endswith(b"\n") else b""
    return json.dumps(value).encode("utf-8", "surrogatepass") + end


def _replace(value: Any, rng: Random) -> Any:
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return rng.choice((*ODD_VALUES, _near(value, rng)))
    at: Any = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    changed: Any = value.copy()
    how = rng.random()
    if how < 0.1:
        del changed[at]
    elif how < 0.2 and isinstance(changed, list):
        changed.insert(rng.randrange(len(changed)), changed[at])
    else:
        changed[at] = _replace(changed[at], rng)
    return changed


def _near(value: Any, rng: Random) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return [value]
    if isinstance(value, str):
        return mutate(value.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
    return value + rng.choice((-2, -1, 1, 2, 64, 0.5))


def _mend_tar(content: bytes) -> bytes:
    """Make the sums of all blocks right that look like headers."""
    mended = bytearray(content)
    for at in range(0, len(mended) - TAR_BLOCK + 1, TAR_BLOCK):
        if mended[at + 257 : at + 262] == b"ustar":
            mended[at + 148 : at + 156] = b" " * 8
            mended[at + 148 : at + 156] = b"%06o\0 " % sum(mended[at : at + TAR_BLOCK])
    return bytes(mended)
