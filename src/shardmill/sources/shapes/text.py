"""Rows that are documents already: plain text such as DCLM, and shardmill's own samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.model.sample import sample_from_plain
from shardmill.sources.shapes.shape import RowDocument, RowSegment, first_of, text_of, unused


@dataclass(frozen=True, slots=True, kw_only=True)
class TextShape:
    """The text is the first of these fields that holds something."""

    text: tuple[str, ...] = ("text", "content", "raw_content")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a text."""
        name = first_of(fields, self.text)
        if name is None:
            raise SampleError("missing field", f"none of {', '.join(self.text)} holds anything")
        segment = RowSegment(kind="text", text=text_of(fields, name))
        return RowDocument(segments=(segment,), extra=unused(fields, {name}))


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentShape:
    """`segments`, `origin` and `extra` as a sample shard stores them; the first origin stays."""

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document as it was stored."""
        sample = sample_from_plain("", dict(fields))
        segments = tuple(
            RowSegment(
                kind=s.kind,
                text=s.text,
                media=s.media or None,
                role=s.role,
                turn=s.turn,
                time_s=s.time_s,
            )
            for s in sample.document.segments
        )
        return RowDocument(segments=segments, extra=sample.extra, origin=sample.origin)
