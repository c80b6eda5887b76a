"""Clips of instruction videos, each with its caption: How2link and Howto-Interlink.

    how2link           {"clip_path": "/any/where/train/x/clip_3", "caption": "A cat."}
    howto-interlink    {"clips": [{"clip_path": ..., "caption": ...}, ...], "summary": "..."}

The first is one clip; the second is all clips of a video, in order, as one document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import RowDocument, RowSegment, is_missing, text_of, unused
from shardmill.sources.shapes.video import VideoShape, clip_in


@dataclass(frozen=True, slots=True, kw_only=True)
class How2LinkShape(VideoShape):
    """One clip of How2link: the last parts of `clip_path` name its file, which is cut already.

    A row of that data set holds many clips: read them with the source `nested`.
    """

    video: tuple[str, ...] = ("clip_path",)
    text: tuple[str, ...] = ("caption",)
    clip: str = ""
    start: str = ""
    end: str = ""
    num_parts: int = 3
    suffix: str = ".mp4"

    def videos(self, fields: Mapping[str, Any]) -> tuple[list[Any], set[str]]:
        """Return the path of the clip below the folder of all clips."""
        found, used = VideoShape.videos(self, fields)
        return [last_parts(path, self.num_parts, self.suffix) for path in found], used


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

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the interleaved document of a video."""
        clips = fields.get("clips")
        if not isinstance(clips, list) or not clips:
            raise SampleError("missing field", "clips must be a list of clips")
        segments = [
            segment for number, clip in enumerate(clips) for segment in self._clip(clip, number)
        ]
        used = {"clips"}
        if not is_missing(fields.get(self.summary)):
            text = text_of(fields, self.summary)
            segments.append(RowSegment(kind="text", text=text, turn=len(clips)))
            used.add(self.summary)
        return RowDocument(segments=tuple(segments), extra=unused(fields, used))

    def _clip(self, clip: Any, number: int) -> list[RowSegment]:
        if not isinstance(clip, Mapping) or is_missing(clip.get("clip_path")):
            raise SampleError("missing field", f"clip {number} has no clip_path: {clip!r:.100}")
        if is_missing(clip.get("caption")):
            raise SampleError("missing caption", f"clip {number} has none")
        video = last_parts(clip["clip_path"], self.num_parts, self.suffix)
        return [
            RowSegment(kind="video", media=video, turn=number),
            RowSegment(
                kind="text",
                text=text_of(clip, "caption"),
                turn=number,
                time_s=clip_in(clip, "clip", "start", "end"),
            ),
        ]


def last_parts(path: Any, num_parts: int, suffix: str) -> str:
    """Return the end of a path: /any/where/train/x/clip_3 gives train/x/clip_3.mp4."""
    if not isinstance(path, str):
        raise SampleError("text is not text", f"a path is {path!r:.100}")
    kept = "/".join(path.split("/")[-num_parts:])
    return kept if kept.endswith(suffix) else kept + suffix
