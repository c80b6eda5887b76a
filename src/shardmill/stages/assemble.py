"""From a row to a sample: its document is shaped, its media are fetched and their headers read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardmill.errors import SampleError
from shardmill.media.sizes import probe
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.sources.fetch import LOCATIONS, Content, Fetcher, describe
from shardmill.sources.jsonable import jsonable
from shardmill.sources.keys import key_from_value
from shardmill.sources.part import Row
from shardmill.sources.shapes.shaped import Piece, Shape


@dataclass(frozen=True, slots=True)
class Assembled:
    """A sample and the sizes of its media by their names."""

    sample: Sample
    sizes: Mapping[str, MediaSize]


@dataclass(frozen=True, slots=True)
class Assembler:
    """Makes samples of rows; `key` is the column that holds the keys, or None."""

    shape: Shape
    fetcher: Fetcher
    key: str | None

    def assemble(self, row: Row) -> Assembled:
        """Return the sample of a row, or raise the `SampleError` that makes it a reject."""
        if row.problem is not None:
            raise row.problem
        try:
            return self._assemble(row)
        except RecursionError as error:
            # JSON may be nested deeper than Python's stack; whatever met it, it is the row's fault.
            raise SampleError("nested too deep", str(error)) from error

    def _assemble(self, row: Row) -> Assembled:
        shaped = self.shape.shape(row.fields)
        if not shaped.pieces:
            raise SampleError("empty document", "it has neither text nor media")
        media = _Media(self.fetcher, row, sum(piece.kind != "text" for piece in shaped.pieces))
        segments = tuple(media.segments(shaped.pieces))
        sample = Sample(
            key=self._key_of(row),
            document=Document(segments),
            media=media.contents,
            origin=shaped.origin or row.origin,
            extra=jsonable({**shaped.extra, **media.infos()}),
        )
        return Assembled(sample, media.sizes)

    def _key_of(self, row: Row) -> str:
        if self.key is None:
            return row.key
        if self.key not in row.fields:
            raise SampleError("missing field", f"the key column {self.key!r} is not in the row")
        return key_from_value(row.fields[self.key])


@dataclass(slots=True)
class _Media:
    """The media of one sample: a single one is named by its extension, several get numbers."""

    fetcher: Fetcher
    row: Row
    count: int
    contents: dict[str, Content] = field(default_factory=dict)
    sizes: dict[str, MediaSize] = field(default_factory=dict)
    described: dict[str, Any] = field(default_factory=dict)

    def segments(self, pieces: tuple[Piece, ...]) -> Iterator[Segment]:
        for piece in pieces:
            yield Segment(
                kind=piece.kind,
                text=piece.text,
                media="" if piece.kind == "text" else self._add(piece),
                role=piece.role,
                turn=piece.turn,
                time_s=piece.time_s,
            )

    def infos(self) -> dict[str, Any]:
        """Return what rows say of their media besides where they are, such as frame numbers."""
        return {"media_info": self.described} if self.described else {}

    def _add(self, piece: Piece) -> str:
        content = self.fetcher.fetch(piece.media, self.row)
        try:
            medium = probe(piece.kind, content)
        except SampleError as error:
            raise SampleError(error.reason, f"{describe(piece.media)}: {error.detail}") from error
        number = len(self.contents)
        name = medium.ext if self.count == 1 else f"{number}.{medium.ext}"
        self.contents[name], self.sizes[name] = content, medium.size
        if isinstance(piece.media, Mapping):
            info = {k: v for k, v in piece.media.items() if k not in LOCATIONS}
            self.described |= {name: info} if info else {}
        return name
