"""Howto-Interlink: the clips of one video in order, each with its caption, as one document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import Piece, Shaped, is_missing, text_of, unused
from shardmill.sources.shapes.video import clip_in, last_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class HowtoInterlinkShape:
    """`clips` with `clip_path` and `caption`; a clip's turn is its number.

    A clip may say when it happens, in `clip` or in `start` and `end`. Its file is cut already, so
    the time belongs to the caption: it is the time of which the text speaks. A `summary` ends the
    document.
    """

    num_parts: int = 3
    suffix: str = ".mp4"
    summary: str = "summary"

    def shape(self, fields: Mapping[str, Any]) -> Shaped:
        """Return the interleaved document of a video."""
        clips = fields.get("clips")
        if not isinstance(clips, list) or not clips:
            raise SampleError("missing field", "clips must be a list of clips")
        pieces = [piece for number, clip in enumerate(clips) for piece in self._clip(clip, number)]
        used = {"clips"}
        if not is_missing(fields.get(self.summary)):
            text = text_of(fields, self.summary)
            pieces.append(Piece(kind="text", text=text, turn=len(clips)))
            used.add(self.summary)
        return Shaped(pieces=tuple(pieces), extra=unused(fields, used))

    def _clip(self, clip: Any, number: int) -> list[Piece]:
        if not isinstance(clip, Mapping) or is_missing(clip.get("clip_path")):
            raise SampleError("missing field", f"clip {number} has no clip_path: {clip!r:.100}")
        if is_missing(clip.get("caption")):
            raise SampleError("missing caption", f"clip {number} has none")
        video = last_parts(clip["clip_path"], self.num_parts, self.suffix)
        return [
            Piece(kind="video", media=video, turn=number),
            Piece(
                kind="text",
                text=text_of(clip, "caption"),
                turn=number,
                time_s=clip_in(clip, "clip", "start", "end"),
            ),
        ]
