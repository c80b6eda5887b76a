"""Shardmill's own samples: the segments are the document already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.model.sample import sample_from_plain
from shardmill.sources.shapes.shaped import Piece, Shaped


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentShape:
    """`segments`, `origin` and `extra` as a sample shard stores them; the first origin stays."""

    def shape(self, fields: Mapping[str, Any]) -> Shaped:
        """Return the document as it was stored."""
        sample = sample_from_plain("", dict(fields))
        pieces = tuple(
            Piece(
                kind=s.kind,
                text=s.text,
                media=s.media or None,
                role=s.role,
                turn=s.turn,
                time_s=s.time_s,
            )
            for s in sample.document.segments
        )
        return Shaped(pieces=pieces, extra=sample.extra, origin=sample.origin)
