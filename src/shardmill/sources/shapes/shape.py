"""What a shape is: it says what the fields of a row mean, as a document; nothing is read.

A `RowSegment` is a segment of the document before its medium was fetched: `media` is what the row
says of it, a path, a url, bytes or a mapping that holds one of them (see `sources.fetch`).
`<image>` and `<video>` in a text stand for media, which are taken in order and each exactly once;
too many or too few placeholders are a `SampleError`, because a guess would train on the wrong
image.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, Protocol, runtime_checkable

from shardmill.errors import SampleError
from shardmill.model.sample import Origin, SegmentKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSegment:
    """A text, or a medium as the row refers to it; the other fields are those of `Segment`."""

    kind: SegmentKind
    text: str = ""
    media: Any = None
    role: str | None = None
    turn: int = 0
    time_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDocument:
    """A document whose media are not fetched yet.

    `uses` says what each field that it is made of is used for ("image", "text", "turns", ...);
    `extra` are the fields that are kept beside it; `origin` is set by rows that know a better one
    than their place in the source.
    """

    segments: tuple[RowSegment, ...]
    uses: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin | None = None


@runtime_checkable
class Shape(Protocol):
    """A frozen dataclass that knows what the fields of a row mean."""

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a row, or raise `SampleError` with the reason it has none."""


def first_of(fields: Mapping[str, Any], names: Collection[str]) -> str | None:
    """Return the first of these names whose field holds something, or None."""
    return next((name for name in names if not is_missing(fields.get(name))), None)


def need_one(
    fields: Mapping[str, Any], names: Collection[str], reason: str = "missing field"
) -> str:
    """Return the first of these names whose field holds something, or raise `SampleError`."""
    name = first_of(fields, names)
    if name is None:
        raise SampleError(reason, f"none of {', '.join(names)} holds anything")
    return name


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


def media_list(
    fields: Mapping[str, Any], names: Collection[str], kind: SegmentKind
) -> tuple[list[Any], dict[str, str]]:
    """Return the media of the first of these fields that holds any, and what it was used for."""
    name = first_of(fields, names)
    if name is None:
        return [], {n: kind for n in names if n in fields}
    value = fields[name]
    return (list(value) if isinstance(value, list | tuple) else [value]), {name: kind}


def unused(fields: Mapping[str, Any], used: Collection[str]) -> dict[str, Any]:
    """Return the fields that a shape did not use."""
    return {name: value for name, value in fields.items() if name not in used}


PLACEHOLDER = re.compile(r"<(image|video)>", re.IGNORECASE)
MISMATCH = "placeholders and media do not match"


@dataclass(slots=True)
class MediaQueue:
    """The media of a row by kind, handed out in order; `finish` finds what was left over.

    With `drop`, a placeholder without its medium means nothing, and neither does a medium without
    its placeholder.
    """

    media: Mapping[str, list[Any]]
    drop: bool = False
    taken: dict[str, int] = field(default_factory=dict)
    as_text: int = 0

    def take(self, kind: str) -> Any:
        """Return the next medium of this kind; none left is counted and found by `finish`."""
        number = self.taken.get(kind, 0)
        self.taken[kind] = number + 1
        found = self.media.get(kind, [])
        return found[number] if number < len(found) else None

    def is_empty(self, kind: str) -> bool:
        """Whether the next placeholder of this kind means nothing."""
        return self.drop and self.taken.get(kind, 0) >= len(self.media.get(kind, []))

    def finish(self) -> None:
        """Raise `SampleError` unless every placeholder had its medium and every medium was used."""
        if self.drop:
            return
        for kind in sorted(self.media.keys() | self.taken.keys()):
            given, asked = len(self.media.get(kind, [])), self.taken.get(kind, 0)
            if given != asked:
                hint = (
                    f"; {self.as_text} more in assistant turns count as text: set assistant_media "
                    "if they mean media"
                    if self.as_text
                    else ""
                )
                raise SampleError(
                    MISMATCH,
                    f"{given} {kind}s, {asked} placeholders <{kind}>{hint}; mismatch=drop of the "
                    "shape leaves out what has no partner",
                )


def split_placeholders(text: str) -> Iterator[tuple[Literal["text", "medium"], str]]:
    """Yield ("text", words) and ("medium", kind) in order; what is between placeholders is text.

    "<image>\\nWhat is it?" gives an image and "\\nWhat is it?": every character stays.
    """
    for number, piece in enumerate(PLACEHOLDER.split(text)):
        if number % 2:
            yield "medium", piece.lower()
        elif piece:
            yield "text", piece


def count_placeholders(text: str) -> int:
    """Return how many placeholders a text holds."""
    return len(PLACEHOLDER.findall(text))


def seconds_of(value: Any) -> float:
    """Return a time in seconds: 19.8, "19.8", "00:19.8" and "00:00:19.8" are all the same."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        seconds = 0.0
        for part in value.split(":") if isinstance(value, str) else [value]:
            seconds = 60 * seconds + float(part)
    except (ValueError, OverflowError) as error:
        raise SampleError("bad time", f"{value!r:.60} is neither seconds nor hh:mm:ss") from error
    if not isfinite(seconds) or seconds < 0:
        raise SampleError("bad time", f"{value!r:.60} is no time in a video")
    return seconds


def clip_of(start: Any, end: Any) -> tuple[float, float]:
    """Return a clip as (start, end) in seconds; one that does not end after its start is bad."""
    clip = seconds_of(start), seconds_of(end)
    if not clip[0] < clip[1]:
        raise SampleError("bad clip", f"it ends at {clip[1]:g} s and starts at {clip[0]:g} s")
    return clip


def clip_in(
    fields: Mapping[str, Any], pair: str, start: str, end: str
) -> tuple[float, float] | None:
    """Return the clip that a row names by a field with a pair or by two fields, or None."""
    if not is_missing(fields.get(pair)):
        value = fields[pair]
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise SampleError("bad clip", f"{pair!r} holds {value!r:.60}, not [start, end]")
        return clip_of(*value)
    if is_missing(fields.get(start)) or is_missing(fields.get(end)):
        return None
    return clip_of(fields[start], fields[end])


def in_clip(
    document: RowDocument, fields: Mapping[str, Any], pair: str, start: str, end: str
) -> RowDocument:
    """Return the document of a row with the clip that the row names meant of every video."""
    clip = clip_in(fields, pair, start, end)
    if clip is None:
        return document
    segments = (replace(p, time_s=clip) if p.kind == "video" else p for p in document.segments)
    times = {name: "time" for name in (pair, start, end) if name in fields}
    return replace(document, segments=tuple(segments), uses={**document.uses, **times})
