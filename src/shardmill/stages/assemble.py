"""From a row to a sample: its shape makes a document, its media are fetched and probed.

Rows are begun some way ahead of the one that is written, so that several downloads are under way
at a time. Fields that the document does not use are kept as `extra`, as values that JSON can store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, TypeAlias

from shardmill.errors import SampleError
from shardmill.media.sizes import probe
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.sources.keys import key_from_value
from shardmill.sources.media.fetch import LOCATIONS, Content, Fetcher, describe
from shardmill.sources.part import Row
from shardmill.sources.shapes.shape import RowDocument, RowSegment, Shape
from shardmill.stages.inputs import SizedSample

ROWS_AHEAD = 256
BYTES_AHEAD = 256 << 20
MAX_DEPTH = 64  # of a field that is stored
LARGEST = 1 << 63  # integers beyond it are stored as text


@dataclass(frozen=True, slots=True)
class Begun:
    """A row and its document, its problem, or its sample if an earlier try has stored it.

    `num_coming` of its media are being downloaded.
    """

    row: Row
    found: RowDocument | SampleError | SizedSample
    num_coming: int = 0


Find: TypeAlias = Callable[[str], SizedSample | None]


@dataclass(frozen=True, slots=True)
class Assembler:
    """Makes samples of rows; `key` is the column that holds the keys, or None."""

    shape: Shape
    fetcher: Fetcher
    key: str | None

    def assemble(self, row: Row) -> SizedSample:
        """Return the sample of a row, or raise the `SampleError` that makes it a reject."""
        return self.complete(self.begin(row))

    def begin_all(self, rows: Iterable[Row], find: Find) -> Iterator[Begun]:
        """Yield rows in order, begun as far ahead as is worth it; `find` knows samples by key.

        Rows that have nothing to download are begun when they are asked for. Otherwise up to
        `ROWS_AHEAD` are, until `BYTES_AHEAD` have arrived: with the downloads that are then under
        way, this bounds the memory.
        """
        window: deque[Begun] = deque()
        num_coming = 0
        for row in rows:
            window.append(self.begin(row, find))
            num_coming += window[-1].num_coming
            while window and not self._may_wait(len(window), num_coming):
                num_coming -= window[0].num_coming
                yield window.popleft()
        yield from window

    def _may_wait(self, num_rows: int, num_coming: int) -> bool:
        return (
            num_coming > 0
            and num_rows < ROWS_AHEAD
            and self.fetcher.downloads.num_bytes < BYTES_AHEAD
        )

    def begin(self, row: Row, find: Find = lambda key: None) -> Begun:
        """Return a row with its shape, or with what is wrong with it; its urls are announced."""
        try:
            if row.problem is not None:
                raise row.problem
            with _row_to_blame():
                return self._begin(row, find)
        except SampleError as problem:
            return Begun(row, problem)

    def complete(self, begun: Begun) -> SizedSample:
        """Return the sample of a row that was begun, or raise the `SampleError`."""
        if isinstance(begun.found, SampleError):
            raise begun.found
        if isinstance(begun.found, SizedSample):
            return begun.found
        with _row_to_blame():
            return self._assemble(begun.row, begun.found)

    def _begin(self, row: Row, find: Find) -> Begun:
        document = self.shape.shape(row.fields)
        if not document.segments:
            raise SampleError("empty document", "it has neither text nor media")
        known = find(self._key_of(row))
        # Another row may have the same key, and have been the one that was kept.
        if known is not None and known.sample.origin == (document.origin or row.origin):
            return Begun(row, known)
        media = [segment.media for segment in document.segments if segment.kind != "text"]
        return Begun(row, document, sum(self.fetcher.announce(medium, row) for medium in media))

    def _assemble(self, row: Row, document: RowDocument) -> SizedSample:
        media = _Media(
            self.fetcher, row, sum(segment.kind != "text" for segment in document.segments)
        )
        segments = tuple(media.segments(document.segments))
        sample = Sample(
            key=self._key_of(row),
            document=Document(segments),
            media=media.contents,
            origin=document.origin or row.origin,
            extra=jsonable({**document.extra, **media.infos()}),
        )
        return SizedSample(sample, media.sizes)

    def _key_of(self, row: Row) -> str:
        if self.key is None:
            return row.key
        if self.key not in row.fields:
            raise SampleError("missing field", f"the key column {self.key!r} is not in the row")
        return key_from_value(row.fields[self.key])


@contextmanager
def _row_to_blame() -> Iterator[None]:
    """JSON may be nested deeper than Python's stack; whatever meets it, it is the row's fault."""
    try:
        yield
    except RecursionError as error:
        raise SampleError("nested too deep", str(error)) from error


@dataclass(slots=True)
class _Media:
    """The media of one sample: a single one is named by its extension, several get numbers."""

    fetcher: Fetcher
    row: Row
    count: int
    contents: dict[str, Content] = field(default_factory=dict)
    sizes: dict[str, MediaSize] = field(default_factory=dict)
    described: dict[str, Any] = field(default_factory=dict)

    def segments(self, segments: tuple[RowSegment, ...]) -> Iterator[Segment]:
        for segment in segments:
            yield Segment(
                kind=segment.kind,
                text=segment.text,
                media="" if segment.kind == "text" else self._add(segment),
                role=segment.role,
                turn=segment.turn,
                time_s=segment.time_s,
            )

    def infos(self) -> dict[str, Any]:
        """Return what rows say of their media besides where they are, such as frame numbers."""
        return {"media_info": self.described} if self.described else {}

    def _add(self, segment: RowSegment) -> str:
        content = self.fetcher.fetch(segment.media, self.row)
        try:
            medium = probe(segment.kind, content)
        except SampleError as error:
            raise SampleError(error.reason, f"{describe(segment.media)}: {error.detail}") from error
        number = len(self.contents)
        name = medium.ext if self.count == 1 else f"{number}.{medium.ext}"
        self.contents[name], self.sizes[name] = content, medium.size
        if isinstance(segment.media, Mapping):
            info = {k: v for k, v in segment.media.items() if k not in LOCATIONS}
            self.described |= {name: info} if info else {}
        return name


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
