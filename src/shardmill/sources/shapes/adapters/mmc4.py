"""MMC4: a page as a list of sentences, and images each matched to one of them.

An image stands just before its sentence and shares its turn, so that a template can put it after
the sentence instead. Images of one sentence keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import RowDocument, RowSegment, first_of, unused


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmc4Shape:
    """`text_list` and `image_info` with `matched_text_index`; the rest of image_info is kept."""

    media: tuple[str, ...] = ("image", "bytes", "path", "image_name", "raw_url")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the interleaved document of a page."""
        sentences = fields.get("text_list")
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise SampleError("missing field", "text_list must be a list of texts")
        images = self._by_sentence(fields.get("image_info") or [], len(sentences))
        segments: list[RowSegment] = []
        for turn, sentence in enumerate(sentences):
            segments += [RowSegment(kind="image", media=m, turn=turn) for m in images.get(turn, ())]
            segments.append(RowSegment(kind="text", text=sentence, turn=turn))
        if not segments:
            raise SampleError("empty document", "text_list is empty")
        return RowDocument(segments=tuple(segments), extra=unused(fields, {"text_list"}))

    def _by_sentence(self, infos: Any, num_sentences: int) -> dict[int, list[Any]]:
        if not isinstance(infos, list):
            raise SampleError("missing field", "image_info must be a list")
        found: dict[int, list[Any]] = {}
        for number, info in enumerate(infos):
            at = info.get("matched_text_index") if isinstance(info, dict) else None
            if not isinstance(at, int) or not 0 <= at < num_sentences:
                detail = f"image {number} is matched to sentence {at!r} of {num_sentences}"
                raise SampleError("image without sentence", detail)
            name = first_of(info, self.media)
            if name is None:
                wanted = ", ".join(self.media)
                raise SampleError("missing field", f"image {number} has none of {wanted}")
            found.setdefault(at, []).append(info[name])
        return found
