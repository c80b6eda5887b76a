"""UniControl: an image of a condition and a prompt ask for the image that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import (
    RowDocument,
    RowSegment,
    first_of,
    is_missing,
    text_of,
    unused,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniControlShape:
    """`source` and the prompt are the user's, `target` is the assistant's answer."""

    source: str = "source"
    target: str = "target"
    text: tuple[str, ...] = ("value", "prompt", "caption")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a pair of images."""
        prompt = first_of(fields, self.text)
        missing = [n for n in (self.source, self.target) if is_missing(fields.get(n))]
        if prompt is None or missing:
            wanted = missing or [" or ".join(self.text)]
            raise SampleError("missing field", f"{', '.join(wanted)} holds nothing")
        segments = (
            RowSegment(kind="image", media=fields[self.source], role="user"),
            RowSegment(kind="text", text=text_of(fields, prompt), role="user"),
            RowSegment(kind="image", media=fields[self.target], role="assistant", turn=1),
        )
        return RowDocument(
            segments=segments, extra=unused(fields, {self.source, self.target, prompt})
        )
