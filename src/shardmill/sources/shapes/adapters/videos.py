"""Video data sets that differ from `VideoShape` by the names of their fields only.

webvid      {"image": "a.mp4", "value": "A cat."}             or the public csv with `name`
internvid   {"YoutubeID": "x", "Start_timestamp": "00:00:01.000", ..., "Caption": "A cat."}
hd-vila     {"video": "a.mp4", "caption": "A cat."}
ego4d       {"video_path": "a.mp4", "caption": "A cat."}
"""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.sources.shapes.video import VideoShape


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
