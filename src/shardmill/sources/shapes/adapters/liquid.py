"""Liquid's rows: an image and a text, in which codes may stand for the image."""

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

CODE_FIELDS = ("vqcode_512", "vqcode_multi768", "vq_code")
NO_CODES: tuple[Any, ...] = (None, "", "no", [])


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidShape:
    """Liquid's rows: `image_path` and `text` or `text_prompt`, or plain text without an image.

    A row that holds codes needs no image any more; the codes stay among its other fields.
    """

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a pair, or of a text for data_type "text_pretrain"."""
        text = first_of(fields, ("text", "text_prompt"))
        if text is None:
            raise SampleError("missing field", "neither text nor text_prompt holds anything")
        segments = [RowSegment(kind="text", text=text_of(fields, text))]
        has_codes = any(fields.get(name) not in NO_CODES for name in CODE_FIELDS)
        has_image = not is_missing(fields.get("image_path"))
        if fields.get("data_type") != "text_pretrain" and not (has_codes and not has_image):
            if not has_image:
                raise SampleError("missing field", "image_path holds nothing")
            segments.insert(0, RowSegment(kind="image", media=fields["image_path"]))
        return RowDocument(segments=tuple(segments), extra=unused(fields, {text, "image_path"}))
