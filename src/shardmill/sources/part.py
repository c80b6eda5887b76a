"""The contract of a source: it lists its parts without reading the data, and reads one part.

A part is a slice of the source as plain JSON; it becomes the input of a unit, so it holds all that
identifies the slice (a file, a range, a checksum or size and time). A row is one sample as the
source stores it, before a shape makes a document of it. Memory is bounded by a part.

Keys of rows are made from paths or columns: no dot, no climbing, nothing that a tar cannot hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import xxhash

from shardmill.errors import SampleError
from shardmill.model.codec import Plain
from shardmill.model.sample import Origin, SegmentKind
from shardmill.shards.tar.header import MAX_KEY_BYTES, check_key, is_note

ROWS_PER_PART = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePart:
    """A slice of a source; `num_rows` counts what reading it yields, or is None if unknown."""

    input: Mapping[str, Plain]
    num_rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: its fields as stored, and what is needed to find its media.

    `media` holds bytes that came with the row, by name (members of a tar); `media_dir` is where
    relative paths in the fields begin. A row that cannot be read carries its `problem` instead.
    """

    key: str
    origin: Origin
    fields: Mapping[str, Any] = field(default_factory=dict)
    media: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    media_dir: str = ""
    problem: SampleError | None = None


Read: TypeAlias = Callable[[Mapping[str, Any]], Iterator[Row]]


@runtime_checkable
class Source(Protocol):
    """A frozen dataclass that lists parts in an order that no filesystem decides."""

    def places(self) -> tuple[str, ...]:
        """Return the folders, files and urls that it was given."""

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield the parts, of `per_shard` rows each; None means the source's own way to cut."""

    def open(self) -> AbstractContextManager[Read]:
        """Open what reading needs, once a process, and yield `read(part.input)`."""

    def inputs(self) -> Mapping[str, Any]:
        """Return a cheap fingerprint of the input: path -> [size, mtime_ns]."""


MEDIA_KINDS: dict[str, SegmentKind] = {
    **dict.fromkeys(("jpg", "jpeg", "jfif", "png", "gif", "webp", "bmp"), "image"),
    **dict.fromkeys(("tif", "tiff", "avif"), "image"),
    **dict.fromkeys(("mp4", "m4v", "mov", "webm", "mkv", "avi", "mpg", "mpeg"), "video"),
    **dict.fromkeys(("ts", "flv", "wmv", "ogv"), "video"),
    **dict.fromkeys(("wav", "mp3", "flac", "ogg", "m4a", "opus"), "audio"),
}


def media_kind(name: str) -> SegmentKind | None:
    """Return the kind that the last suffix of a name promises, or None; the bytes decide later."""
    return MEDIA_KINDS.get(name.rpartition(".")[2].lower())


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
