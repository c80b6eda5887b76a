"""A video and what is said of it; and the data sets that differ from that by names only.

    video       {"video_path": "a.mp4", "value": "A cat."}        a user's own rows
    webvid      {"image": "a.mp4", "value": "A cat."}             or the public csv with `name`
    internvid   {"YoutubeID": "x", "Start_timestamp": "00:00:01.000", ..., "Caption": "A cat."}
    hd-vila     {"video": "a.mp4", "caption": "A cat."}
    ego4d       {"video_path": "a.mp4", "caption": "A cat."}
    how2link    {"clip_path": "/any/where/train/x/clip_3", "caption": "A cat."}

A caption is a text after the video, without roles; a list of questions or turns is a conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.clips import clip_in, in_clip
from shardmill.sources.shapes.shaped import (
    Piece,
    Shaped,
    first_of,
    is_missing,
    media_list,
    text_of,
    unused,
)
from shardmill.sources.shapes.talk import talk_pieces


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
