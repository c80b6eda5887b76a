"""A video and what is said of it; which part of the video is meant, in seconds or as hh:mm:ss.

    {"video_path": "a.mp4", "value": "A cat."}
    {"video": "a.mp4", "caption": "A cat.", "clip": [3.5, 9]}

A caption is a text after the video, without roles; a list of questions or turns is a conversation.
Data sets that differ from this by the names of their fields are in `adapters/videos.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.messages import talk_segments
from shardmill.sources.shapes.shape import (
    RowDocument,
    RowSegment,
    first_of,
    is_missing,
    media_list,
    text_of,
    unused,
)


def seconds_of(value: Any) -> float:
    """Return a time in seconds: 19.8, "19.8", "00:19.8" and "00:00:19.8" are all the same."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        seconds = 0.0
        for part in value.split(":") if isinstance(value, str) else [value]:
            seconds = 60 * seconds + float(part)
    except (ValueError, OverflowError) as error:
        raise SampleError("bad time", f"{value!r:.60} is neither seconds nor hh:mm:ss") from error
    if not isfinite(seconds) or seconds < 0:
        raise SampleError("bad time", f"{value!r:.60} is no time in a video")
    return seconds


def clip_of(start: Any, end: Any) -> tuple[float, float]:
    """Return a clip as (start, end) in seconds; one that does not end after its start is bad."""
    clip = seconds_of(start), seconds_of(end)
    if not clip[0] < clip[1]:
        raise SampleError("bad clip", f"it ends at {clip[1]:g} s and starts at {clip[0]:g} s")
    return clip


def clip_in(
    fields: Mapping[str, Any], pair: str, start: str, end: str
) -> tuple[float, float] | None:
    """Return the clip that a row names by a field with a pair or by two fields, or None."""
    if not is_missing(fields.get(pair)):
        value = fields[pair]
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise SampleError("bad clip", f"{pair!r} holds {value!r:.60}, not [start, end]")
        return clip_of(*value)
    if is_missing(fields.get(start)) or is_missing(fields.get(end)):
        return None
    return clip_of(fields[start], fields[end])


def in_clip(segments: list[RowSegment], clip: tuple[float, float] | None) -> list[RowSegment]:
    """Return the segments with this clip meant of every video."""
    if clip is None:
        return segments
    return [replace(p, time_s=clip) if p.kind == "video" else p for p in segments]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoShape:
    """The video is the first of its fields that holds something, and so is what is said.

    `path` makes the path from fields instead: "{YoutubeID}.mp4". A row may mean only a part of its
    video: `clip` names a field with [start, end], `start` and `end` two fields.
    """

    video: tuple[str, ...] = ("video_path", "video", "videos")
    text: tuple[str, ...] = ("value", "caption", "text")
    path: str = ""
    clip: str = "clip"
    start: str = "start"
    end: str = "end"

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a video."""
        videos, used = self.videos(fields)
        name = first_of(fields, self.text)
        if name is None:
            wanted = ", ".join(self.text)
            raise SampleError("missing caption", f"none of {wanted} holds anything")
        if isinstance(fields[name], list):
            segments = talk_segments(fields[name], [], videos)
        else:
            segments = [RowSegment(kind="video", media=video) for video in videos]
            segments.append(RowSegment(kind="text", text=text_of(fields, name)))
        clip = clip_in(fields, self.clip, self.start, self.end)
        return RowDocument(
            segments=tuple(in_clip(segments, clip)), extra=unused(fields, used | {name})
        )

    def videos(self, fields: Mapping[str, Any]) -> tuple[list[Any], set[str]]:
        """Return the videos of a row, and the fields that named them."""
        if self.path:
            return [path_from(self.path, fields)], set()
        videos, used = media_list(fields, self.video)
        if not videos:
            wanted = ", ".join(self.video)
            raise SampleError("missing field", f"no video: none of {wanted} holds anything")
        return videos, used


def path_from(pattern: str, fields: Mapping[str, Any]) -> str:
    """Return the path that a pattern makes of the fields of a row."""
    try:
        known = {name: value for name, value in fields.items() if not is_missing(value)}
        return pattern.format_map(known)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise SampleError("missing field", f"{pattern!r} needs {error} of the row") from error
