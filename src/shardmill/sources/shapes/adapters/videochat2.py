"""VideoChat2 and other tuning sets: a video or images, and questions with their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.messages import talk_segments
from shardmill.sources.shapes.shape import RowDocument, first_of, media_list, unused
from shardmill.sources.shapes.video import clip_in, in_clip


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoChat2Shape:
    """`QA` or `conversations` about `video`, `image` or a list of frames in `images`.

    Without placeholders the media stand before the first question; `start` and `end`, or `clip`,
    say which part of the video is meant.
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
