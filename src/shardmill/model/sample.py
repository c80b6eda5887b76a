"""The canonical sample: a document, which is an ordered list of segments, and its media.

A segment is text or refers to a medium. A caption pair, a chat, an interleaved page, a video with
captions and plain text are all that. On disk a sample is the member `K.json` (the plain form of
this module) and its media members.

What the messages of a chat carry besides their text (tool calls, and which call a tool answers)
lies in `extra["turn_fields"]`, by the number of the turn. Tools and their calls are kept as JSON
text, because templates write them out in the order of the row and a stored sample sorts its keys:

    {"1": {"tool_calls": '[{"type": "function", "function": {"name": "add", ...}}]'},
     "2": {"tool_call_id": "a1", "name": "add"}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from reprlib import repr as shortened
from typing import Any, Literal, get_args

import orjson

from shardmill.errors import SampleError

SegmentKind = Literal["text", "image", "video", "audio"]
SEGMENT_KINDS: tuple[str, ...] = get_args(SegmentKind)
ROLES = ("system", "user", "assistant", "tool")
EXTRA_NAME = "turn_fields"
KEPT_FIELDS = ("tool_calls", "tool_call_id", "name")
# Far below Python's recursion limit, which hostile JSON would reach.
MAX_DEPTH = 64
INGEST_FIRST = "samples of others become documents by `shardmill ingest`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a document: text, or a reference to one medium of the sample.

    `media` is the name of the medium inside its sample, such as "jpg" or "0.jpg" (see
    docs/formats.md). Segments of one `turn` were said by one `role`; a document that
    is not a conversation has role None. `time_s` is the part of the medium that is meant or, for
    text, the time of which it speaks, as (start, end) in seconds.
    """

    kind: SegmentKind
    text: str = ""
    media: str = ""
    role: str | None = None
    turn: int = 0
    time_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSize:
    """What a medium's header says; an image has one frame and no duration, 0 means unknown."""

    width: int = 0
    height: int = 0
    num_frames: int = 1
    fps: float = 0.0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Document:
    """An ordered list of segments."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """All text, turns separated by newlines."""
        return "\n".join(s.text for s in self.segments if s.kind == "text")

    def media(self, kind: str | None = None) -> list[Segment]:
        """The media segments in order, of one kind if given."""
        return [s for s in self.segments if s.kind != "text" and kind in (None, s.kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a sample came from: the source's name, the file or url, and the row or member in it."""

    source: str
    path: str
    row: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A document with the bytes of its media, its key, its origin and the row's other fields."""

    key: str
    document: Document
    media: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    origin: Origin | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All text of the document."""
        return self.document.text

    @property
    def images(self) -> list[bytes | memoryview]:
        """The encoded images in the order of the document."""
        return [self.media[segment.media] for segment in self.document.media("image")]


def with_roles(document: Document, question: str = "") -> Iterator[Segment]:
    """Yield the segments with roles: media and their marks are the user's, text answers them."""
    if not document.text.strip():
        raise SampleError("missing caption", "its media have no text")
    turn, before = 0, None
    for segment in document.segments:
        role = "user" if segment.kind != "text" or _is_mark(segment, before) else "assistant"
        if before is not None and role != before.role:
            if role == "assistant" and question:
                yield Segment(kind="text", text=question, role="user", turn=turn)
            turn += 1
        before = replace(segment, role=role, turn=turn)
        yield before


def _is_mark(segment: Segment, before: Segment | None) -> bool:
    """Say whether a text only names the moment of the image before it, as `frames` writes it."""
    if before is None or before.kind != "image" or segment.time_s is None:
        return False
    start_s, end_s = segment.time_s
    return start_s == end_s and before.time_s == segment.time_s


def said_in_turns(document: Document, show: Callable[[Segment], str]) -> list[tuple[str, str]]:
    """Return role and text of each turn; texts that stand together have a line break between them.

    `show` says what stands for a medium. Without roles, media ask and text answers.
    """
    segments: Iterable[Segment] = document.segments
    if all(segment.role is None for segment in segments):
        segments = with_roles(document)
    turns = []
    for (role, _), group in groupby(segments, lambda segment: (segment.role, segment.turn)):
        said, before = "", ""
        for segment in group:
            if segment.kind == "text":
                said += ("\n" if before == "text" else "") + segment.text
            else:
                said += show(segment)
            before = segment.kind
        turns.append((role or "", said))
    return turns


def sample_to_plain(sample: Sample) -> dict[str, Any]:
    """Return the content of `K.json`; defaults are left out, so that a caption pair stays small."""
    plain: dict[str, Any] = {"segments": [_segment_to_plain(s) for s in sample.document.segments]}
    if sample.origin is not None:
        plain["origin"] = {
            "source": sample.origin.source,
            "path": sample.origin.path,
            "row": sample.origin.row,
        }
    if sample.extra:
        plain["extra"] = dict(sample.extra)
    return plain


def sample_from_plain(
    key: str, plain: object, media: Mapping[str, bytes | memoryview] | None = None
) -> Sample:
    """Return the sample that `sample_to_plain` stored; anything else is a `SampleError`."""
    if not isinstance(plain, dict) or not isinstance(plain.get("segments"), list):
        raise SampleError("not a document", f"its json has no list 'segments': {INGEST_FIRST}")
    origin = plain.get("origin")
    try:
        return Sample(
            key=key,
            document=Document(tuple(_segments_from_plain(plain["segments"]))),
            media=media or {},
            origin=None
            if origin is None
            else Origin(source=origin["source"], path=origin["path"], row=origin["row"]),
            extra=plain.get("extra") or {},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SampleError("not a document", f"{type(error).__name__}: {error}") from error


def kept_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message says besides its text; columns that a table left empty are not it."""
    return {name: message[name] for name in KEPT_FIELDS if message.get(name) not in (None, "", [])}


def stored_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a message in the form that samples store."""
    return {n: as_written(v) if n == "tool_calls" else v for n, v in kept_fields(message).items()}


def as_written(value: Any) -> str:
    """Return a list of tools or calls as JSON text, its keys in the order of the row."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise SampleError("not JSON", f"tools or their calls: {error}") from error


def turn_fields(sample: Sample) -> dict[int, dict[str, Any]]:
    """Return the fields of each turn that has any; those of no known form are a `SampleError`."""
    stored = sample.extra.get(EXTRA_NAME) or {}
    if not isinstance(stored, Mapping):
        raise SampleError("bad turn fields", f"not an object: {shortened(stored)}")
    return {_number(turn): _checked(turn, fields) for turn, fields in stored.items()}


def tools_of(sample: Sample, field: str) -> list[Any] | None:
    """Return the tools of a sample: a list of schemas, or the JSON of one; None if it has none."""
    tools = sample.extra.get(field)
    if tools is None or tools == "":
        return None
    tools = _parsed(tools, "bad tools", repr(field))
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise SampleError("bad tools", f"{field!r} is no list of objects: {shortened(tools)}")
    return tools


def change_texts(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """Return a JSON value with every text in it changed, the names of fields too."""
    if isinstance(value, str):
        return change(value)
    if depth == MAX_DEPTH:
        raise SampleError("nested too deep", f"tools or their calls go below {MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return [change_texts(item, change, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {
            change_texts(name, change, depth): change_texts(item, change, depth + 1)
            for name, item in value.items()
        }
    return value


def _segment_to_plain(segment: Segment) -> dict[str, Any]:
    plain: dict[str, Any] = {
        segment.kind: segment.text if segment.kind == "text" else segment.media
    }
    if segment.role is not None:
        plain["role"] = segment.role
    if segment.turn:
        plain["turn"] = segment.turn
    if segment.time_s is not None:
        plain["time_s"] = list(segment.time_s)
    return plain


def _segments_from_plain(items: Iterable[Any]) -> Iterable[Segment]:
    for item in items:
        kinds = [kind for kind in SEGMENT_KINDS if kind in item]
        if len(kinds) != 1 or not isinstance(item[kinds[0]], str):
            needed = ", ".join(SEGMENT_KINDS)
            raise ValueError(f"a segment needs one of {needed}: {shortened(item)}")
        kind = kinds[0]
        time_s = item.get("time_s")
        yield Segment(
            kind=kind,  # type: ignore[arg-type]
            text=item[kind] if kind == "text" else "",
            media="" if kind == "text" else item[kind],
            role=item.get("role"),
            turn=int(item.get("turn", 0)),
            time_s=None if time_s is None else (float(time_s[0]), float(time_s[1])),
        )


def _parsed(value: Any, reason: str, where: str) -> Any:
    try:
        return orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError as error:
        raise SampleError(reason, f"{where} is not JSON: {error}") from error


def _number(turn: object) -> int:
    if isinstance(turn, str) and turn.isascii() and turn.isdigit() and len(turn) < 10:
        return int(turn)
    raise SampleError("bad turn fields", f"{shortened(turn)} is no number of a turn")


def _checked(turn: str, fields: Any) -> dict[str, Any]:
    if not isinstance(fields, Mapping):
        raise SampleError("bad turn fields", f"turn {turn}: {shortened(fields)}")
    found = kept_fields(fields)
    if "tool_calls" not in found:
        return found
    calls = _parsed(found["tool_calls"], "bad tool calls", f"turn {turn}")
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise SampleError("bad tool calls", f"turn {turn}: {shortened(calls)} is no list of calls")
    return {**found, "tool_calls": calls}
