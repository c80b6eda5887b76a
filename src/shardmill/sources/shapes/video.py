"""A video and what is said of it; and the data sets that differ from that by names only.

    video       {"video_path": "a.mp4", "value": "A cat."}        a user's own rows
    webvid      {"image": "a.mp4", "value": "A cat."}             or the public csv with `name`
    internvid   {"YoutubeID": "x", "Start_timestamp": "00:00:01.000", ..., "Caption": "A cat."}
    hd-vila     {"video": "a.mp4", "caption": "A cat."}
    ego4d       {"video_path": "a.mp4", "caption": "A cat."}
    how2link    {"clip_path": "/any/where/train/x/clip_3", "caption": "A cat."}

A caption is a text after the video, without roles; a list of questions or turns is a conversation.

Parts of a video as rows name them: a pair, or two fields, in seconds or as hh:mm:ss.mmm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.messages import talk_pieces
from shardmill.sources.shapes.shape import (
    Piece,
    Shaped,
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


def in_clip(pieces: list[Piece], clip: tuple[float, float] | None) -> list[Piece]:
    """Return the pieces with this clip meant of every video."""
    if clip is None:
        return pieces
    return [replace(p, time_s=clip) if p.kind == "video" else p for p in pieces]


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

    def shape(self, fields: Mapping[str, Any]) -> Shaped:
        """Return the document of a video."""
        videos, used = self.videos(fields)
        name = first_of(fields, self.text)
        if name is None:
            wanted = ", ".join(self.text)
            raise SampleError("missing caption", f"none of {wanted} holds anything")
        if isinstance(fields[name], list):
            pieces = talk_pieces(fields[name], [], videos)
        else:
            pieces = [Piece(kind="video", media=video) for video in videos]
            pieces.append(Piece(kind="text", text=text_of(fields, name)))
        clip = clip_in(fields, self.clip, self.start, self.end)
        return Shaped(pieces=tuple(in_clip(pieces, clip)), extra=unused(fields, used | {name}))

    def videos(self, fields: Mapping[str, Any]) -> tuple[list[Any], set[str]]:
        """Return the videos of a row, and the fields that named them."""
        if self.path:
            return [path_from(self.path, fields)], set()
        videos, used = media_list(fields, self.video)
        if not videos:
            wanted = ", ".join(self.video)
            raise SampleError("missing field", f"no video: none of {wanted} holds anything")
        return videos, used


@dataclass(frozen=True, slots=True, kw_only=True)
class WebVidShape(VideoShape):
    """WebVid: the video is called `image`, or is at `contentUrl` in the public csv."""

    video: tuple[str, ...] = ("image", "video_path", "video", "contentUrl")
    text: tuple[str, ...] = ("value", "caption", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVidShape(VideoShape):
    """InternVid: files that were cut already are named by video, start and end.

    Of whole videos, take path="{YoutubeID}.mp4" with start="Start_timestamp" and
    end="End_timestamp".
    """

    text: tuple[str, ...] = ("Caption", "caption")
    path: str = "{YoutubeID}_{Start_timestamp}_{End_timestamp}.mp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class HdVilaShape(VideoShape):
    """HD-VILA and its captioned part hd3m; `span` is the part of a whole video."""

    video: tuple[str, ...] = ("video", "video_path")
    text: tuple[str, ...] = ("caption", "value")
    clip: str = "span"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ego4dShape(VideoShape):
    """Ego4D: narrations of a video, or of a part of one."""

    text: tuple[str, ...] = ("caption", "value", "narration_text")
    start: str = "start_sec"
    end: str = "end_sec"


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


def last_parts(path: Any, num_parts: int, suffix: str) -> str:
    """Return the end of a path: /any/where/train/x/clip_3 gives train/x/clip_3.mp4."""
    if not isinstance(path, str):
        raise SampleError("text is not text", f"a path is {path!r:.100}")
    kept = "/".join(path.split("/")[-num_parts:])
    return kept if kept.endswith(suffix) else kept + suffix


def path_from(pattern: str, fields: Mapping[str, Any]) -> str:
    """Return the path that a pattern makes of the fields of a row."""
    try:
        known = {name: value for name, value in fields.items() if not is_missing(value)}
        return pattern.format_map(known)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise SampleError("missing field", f"{pattern!r} needs {error} of the row") from error
