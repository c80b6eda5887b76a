"""Video data sets, most of which differ from `VideoShape` by the names of their fields only.

webvid            {"image": "a.mp4", "value": "A cat."}    or the public csv with `name`
internvid         {"YoutubeID": "x", "Start_timestamp": "00:00:01.000", ..., "Caption": "..."}
hd-vila           {"video": "a.mp4", "caption": "A cat."}
ego4d             {"video_path": "a.mp4", "caption": "A cat."}
how2link          {"clip_path": "/any/where/train/x/clip_3", "caption": "A cat."}
howto-interlink   {"clips": [{"clip_path": ..., "caption": ...}, ...], "summary": "..."}
videochat2        {"video": "a.mp4", "QA": [{"i": "Look.", "q": "What?", "a": "A cat."}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from shardmill.sources.shapes.video import VideoShape, clip_in, in_clip


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HowtoInterlinkShape:
    """All clips of a video as one document: `clips` with `clip_path` and `caption`.

    A clip's turn is its number.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoChat2Shape:
    """VideoChat2 and other tuning sets: `QA` or `conversations` about a video or images.

    Frames come as a list in `images`. Without placeholders the media stand before the first
    question; `start` and `end`, or `clip`, say which part of the video is meant.
    """

    talk: tuple[str, ...] = ("QA", "conversations", "value")
    image: tuple[str, ...] = ("image", "images")
    video: tuple[str, ...] = ("video", "videos", "video_path")
    clip: str = "clip"
    start: str = "start"
    end: str = "end"

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a conversation about media."""
        name = first_of(fields, self.talk)
        if name is None:
            raise SampleError("missing field", f"none of {', '.join(self.talk)} holds anything")
        images, used_images = media_list(fields, self.image)
        videos, used_videos = media_list(fields, self.video)
        segments = talk_segments(fields[name], images, videos)
        clip = clip_in(fields, self.clip, self.start, self.end)
        extra = unused(fields, {name} | used_images | used_videos)
        return RowDocument(segments=tuple(in_clip(segments, clip)), extra=extra)
