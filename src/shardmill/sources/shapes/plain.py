"""Rows without turns: plain text, media with a caption, and shardmill's own samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.model.sample import sample_from_plain
from shardmill.sources.shapes.shape import (
    RowDocument,
    RowSegment,
    first_of,
    media_list,
    text_of,
    unused,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextShape:
    """The text is the first of these fields that holds something."""

    text: tuple[str, ...] = ("text", "content", "raw_content")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a text."""
        name = first_of(fields, self.text)
        if name is None:
            raise SampleError("missing field", f"none of {', '.join(self.text)} holds anything")
        segment = RowSegment(kind="text", text=text_of(fields, name))
        return RowDocument(segments=(segment,), extra=unused(fields, {name}))


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentShape:
    """`segments`, `origin` and `extra` as a sample shard stores them; the first origin stays."""

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document as it was stored."""
        sample = sample_from_plain("", dict(fields))
        segments = tuple(
            RowSegment(
                kind=s.kind,
                text=s.text,
                media=s.media or None,
                role=s.role,
                turn=s.turn,
                time_s=s.time_s,
            )
            for s in sample.document.segments
        )
        return RowDocument(segments=segments, extra=sample.extra, origin=sample.origin)


IMAGE_FIELDS = ("image", "images", "image_path", "img_path", "image_url", "url")
VIDEO_FIELDS = ("video", "videos", "video_path", "video_url")
AUDIO_FIELDS = ("audio", "audio_path")
TEXT_FIELDS = ("text", "caption", "text_prompt", "captions")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairShape:
    """Media first, then the text; each is the first of these fields that holds something.

    A row without text is an image without caption, which is kept; one without media is not a
    pair. Of a list of captions the first is taken, the others stay in the row's other fields.
    """

    image: tuple[str, ...] = IMAGE_FIELDS
    video: tuple[str, ...] = VIDEO_FIELDS
    audio: tuple[str, ...] = AUDIO_FIELDS
    text: tuple[str, ...] = TEXT_FIELDS

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a caption pair."""
        videos, used = media_list(fields, self.video)
        audios, used_audio = media_list(fields, self.audio)
        # A `url` beside a video is where it came from, not an image.
        is_only = not videos and not audios
        images, used_image = media_list(fields, [n for n in self.image if is_only or n != "url"])
        if not images and not videos and not audios:
            wanted = ", ".join((*self.image, *self.video, *self.audio))
            raise SampleError("missing field", f"no medium: none of {wanted} holds anything")
        text = first_of(fields, self.text)
        segments = [RowSegment(kind="image", media=media) for media in images]
        segments += [RowSegment(kind="video", media=media) for media in videos]
        segments += [RowSegment(kind="audio", media=media) for media in audios]
        used = used | used_audio | used_image
        if text is not None:
            segments.append(RowSegment(kind="text", text=_caption(fields, text)))
            used |= set() if isinstance(fields[text], list) else {text}
        return RowDocument(segments=tuple(segments), extra=unused(fields, used))


def _caption(fields: Mapping[str, Any], name: str) -> str:
    value = fields[name]
    return text_of({name: value[0]}, name) if isinstance(value, list) else text_of(fields, name)
