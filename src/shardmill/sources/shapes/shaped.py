"""The contract of a shape: fields in, pieces of a document out; nothing is read.

A piece is a segment before its medium was fetched: `media` is what the row says of it, a path, a
url, bytes or a mapping that holds one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from shardmill.errors import SampleError
from shardmill.model.sample import Origin, SegmentKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A text, or a reference to a medium as the row stores it."""

    kind: SegmentKind
    text: str = ""
    media: Any = None
    role: str | None = None
    turn: int = 0
    time_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """A document whose media are not fetched yet, and the fields that it did not use."""

    pieces: tuple[Piece, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin | None = None


@runtime_checkable
class Shape(Protocol):
    """A frozen dataclass that knows what the fields of a row mean."""

    def shape(self, fields: Mapping[str, Any]) -> Shaped:
        """Return the document of a row, or raise `SampleError` with the reason it has none."""


def first_of(fields: Mapping[str, Any], names: Collection[str]) -> str | None:
    """Return the first of these names whose field holds something, or None."""
    return next((name for name in names if not is_missing(fields.get(name))), None)


def is_missing(value: object) -> bool:
    """Say whether a field holds nothing: None, an empty text or an empty list; 0 is something."""
    return value is None or (isinstance(value, str | list | bytes | dict) and not value)


def text_of(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that must be text."""
    value = fields[name]
    if not isinstance(value, str):
        kind = type(value).__name__
        raise SampleError("text is not text", f"field {name!r} is a {kind}: {value!r:.100}")
    return value


def media_list(fields: Mapping[str, Any], names: Collection[str]) -> tuple[list[Any], set[str]]:
    """Return the media of the first of these fields that holds any, and the names it used."""
    name = first_of(fields, names)
    if name is None:
        return [], {n for n in names if n in fields}
    value = fields[name]
    return (list(value) if isinstance(value, list | tuple) else [value]), {name}


def unused(fields: Mapping[str, Any], used: Collection[str]) -> dict[str, Any]:
    """Return the fields that a shape did not use."""
    return {name: value for name, value in fields.items() if name not in used}
