"""Shapes that many data sets share: text, media with a caption, conversations, videos.

    {"text": "Once upon a time"}                                                    text
    {"image": "a.jpg", "caption": "A cat."}                                         pair
    {"messages": [{"role": "user", "content": "<image>What?"}, ...], "images": ["a.jpg"]}
    {"conversations": [{"from": "human", "value": "<image>What?"}, ...], "image": "a.jpg"}
    {"video": "a.mp4", "caption": "A cat.", "clip": [3.5, 9]}                       video

In conversations, media come by placeholder or as typed parts of the content. Placeholders count in
every turn but the assistant's, where `<image>` is as likely to be a word of the answer;
`assistant_media` lets them count there too, for models that answer with images. Tool calls, and
which call a tool answers, stay with their turn (see `model.sample`); such a turn stands in the
document even if it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Literal

from shardmill.errors import SampleError
from shardmill.model.sample import (
    EXTRA_NAME,
    SegmentKind,
    as_written,
    kept_fields,
    sample_from_plain,
    stored_fields,
)
from shardmill.sources.shapes.shape import (
    MediaQueue,
    RowDocument,
    RowSegment,
    count_placeholders,
    first_of,
    in_clip,
    is_missing,
    media_list,
    need_one,
    split_placeholders,
    text_of,
    unused,
)
from shardmill.sources.source import media_kind

KINDS: dict[str, SegmentKind] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "audio": "audio",
    "input_audio": "audio",
}
TEXT_TYPES = ("text", "input_text", "output_text")
SPEAKERS = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextShape:
    """The text is the first of these fields that holds something."""

    text: tuple[str, ...] = ("text", "content", "raw_content")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        name = need_one(fields, self.text)
        segment = RowSegment(kind="text", text=text_of(fields, name))
        return RowDocument(segments=(segment,), uses={name: "text"}, extra=unused(fields, {name}))


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentShape:
    """`segments`, `origin` and `extra` as a sample shard stores them; the first origin stays."""

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
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
        return RowDocument(
            segments=segments,
            uses=dict.fromkeys(fields, "document"),
            extra=sample.extra,
            origin=sample.origin,
        )


IMAGE_FIELDS = ("image", "images", "image_path", "img_path", "image_url", "url", "URL")
VIDEO_FIELDS = ("video", "videos", "video_path", "video_url")
AUDIO_FIELDS = ("audio", "audio_path")
TEXT_FIELDS = ("text", "caption", "text_prompt", "captions", "TEXT")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairShape:
    """Media first, then the text; each is the first of these fields that holds something.

    A row without text is an image without caption, which is kept; one without media is not a
    pair. Several captions of a row are refused, unless `several` says to take the "first"; then all
    of them stay in the row's other fields. A row may mean a part of its video. Where no other field
    names a medium, `file` does, whose name tells what it is.
    """

    image: tuple[str, ...] = IMAGE_FIELDS
    video: tuple[str, ...] = VIDEO_FIELDS
    audio: tuple[str, ...] = AUDIO_FIELDS
    file: tuple[str, ...] = ("file_name", "image_name", "imgname")
    text: tuple[str, ...] = TEXT_FIELDS
    several: Literal["refuse", "first"] = "refuse"
    clip: str = "clip"
    start: str = "start"
    end: str = "end"

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        videos, uses = media_list(fields, self.video, "video")
        audios, audio_uses = media_list(fields, self.audio, "audio")
        # A `url` beside a video is where it came from, not an image.
        is_only = not videos and not audios
        names = [name for name in self.image if is_only or name.lower() != "url"]
        images, image_uses = media_list(fields, names, "image")
        text = first_of(fields, self.text)
        segments = [RowSegment(kind="image", media=media) for media in images]
        segments += [RowSegment(kind="video", media=media) for media in videos]
        segments += [RowSegment(kind="audio", media=media) for media in audios]
        uses |= audio_uses | image_uses
        if not segments:
            name = first_of(fields, self.file)
            kind = None if name is None else media_kind(text_of(fields, name))
            if name is None or kind is None:
                wanted = ", ".join((*self.image, *self.video, *self.audio, *self.file))
                raise SampleError("missing field", f"no medium: none of {wanted} names one")
            segments, uses = [RowSegment(kind=kind, media=fields[name])], {**uses, name: kind}
        if text is not None:
            segments.append(RowSegment(kind="text", text=self._caption(fields, text)))
            uses[text] = "text"
        extra = unused(fields, uses)
        if text is not None and isinstance(fields[text], list):
            extra[text] = fields[text]
        document = RowDocument(segments=tuple(segments), uses=uses, extra=extra)
        is_film = any(segment.kind == "video" for segment in segments)
        return in_clip(document, fields, self.clip, self.start, self.end) if is_film else document

    def _caption(self, fields: Mapping[str, Any], name: str) -> str:
        value = fields[name]
        if not isinstance(value, list):
            return text_of(fields, name)
        if len(value) > 1 and self.several == "refuse":
            detail = f"{name!r} holds {len(value)}: take the first by --shape pair,several=first"
            raise SampleError("several captions", f"{detail}, or none by --extra {name}")
        return text_of({name: value[0]}, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesShape:
    """`messages` with `role` and `content`, as OpenAI and NeMo write them; names can be changed.

    `roles` says which role other speakers have than `SPEAKERS`; an unknown one makes the row a
    reject. So do placeholders and media that do not match, unless `mismatch` is "drop": then those
    without a partner are left out, as NeMo does.
    """

    messages: tuple[str, ...] = ("messages", "conversation")
    role_tag: str = "role"
    content_tag: str = "content"
    images: tuple[str, ...] = ("images", "image")
    videos: tuple[str, ...] = ("videos", "video")
    audios: tuple[str, ...] = ("audios", "audio")
    roles: Mapping[str, str] = field(default_factory=dict)
    system: str = "system"
    tools: str = "tools"
    assistant_media: bool = False
    mismatch: Literal["refuse", "drop"] = "refuse"

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        name = need_one(fields, self.messages, "empty conversation")
        turns = fields[name]
        if not isinstance(turns, list):
            raise SampleError("empty conversation", f"{name!r} holds no turns")
        media, uses = self._media(fields)
        segments: list[RowSegment] = []
        system = fields.get(self.system)
        if isinstance(system, str) and system:
            segments.append(RowSegment(kind="text", text=system, role="system"))
            uses[self.system] = "system"
        kept: dict[str, Any] = {}
        for number, turn in enumerate(turns, len(segments)):
            segments += self._turn(turn, number, media)
            if found := stored_fields(turn):
                kept[str(number)] = found
        media.finish()
        if not segments:
            raise SampleError("empty conversation", f"{len(turns)} turns without text or media")
        uses[name] = "turns"
        extra = unused(fields, {EXTRA_NAME, *uses})
        if isinstance(extra.get(self.tools), list):
            extra[self.tools] = as_written(extra[self.tools])
            uses[self.tools] = "tools"
        return RowDocument(
            segments=tuple(segments),
            uses=uses,
            extra={**extra, EXTRA_NAME: kept} if kept else extra,
        )

    def _media(self, fields: Mapping[str, Any]) -> tuple[MediaQueue, dict[str, str]]:
        images, image_uses = media_list(fields, self.images, "image")
        videos, video_uses = media_list(fields, self.videos, "video")
        audios, audio_uses = media_list(fields, self.audios, "audio")
        media = {"image": images, "video": videos, "audio": audios}
        queue = MediaQueue(media, drop=self.mismatch == "drop")
        return queue, image_uses | video_uses | audio_uses

    def _turn(self, turn: Any, number: int, media: MediaQueue) -> list[RowSegment]:
        if not isinstance(turn, dict):
            raise SampleError("turn is not an object", f"turn {number}: {turn!r:.100}")
        speaker = turn.get(self.role_tag)
        known = {**SPEAKERS, **self.roles}
        role = known.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            say = f"known are {', '.join(known)}; name others by the field roles of the shape, "
            say += 'such as roles={"bot":"assistant"}'
            raise SampleError("unknown role", f"turn {number} is by {speaker!r:.60}, {say}")
        segments = list(self._content(turn.get(self.content_tag), role, number, media))
        if not segments and (role == "tool" or kept_fields(turn)):
            return [RowSegment(kind="text", role=role, turn=number)]
        if turn.get(self.content_tag) is None and not kept_fields(turn):
            raise SampleError("missing field", f"turn {number}: {self.content_tag!r} has no text")
        return segments

    def _content(
        self, content: Any, role: str, number: int, media: MediaQueue
    ) -> Iterator[RowSegment]:
        if isinstance(content, str):
            yield from self._text(content, role, number, media)
        elif isinstance(content, list):
            for part in content:
                yield from self._part(part, role, number, media)
        elif content is not None:
            kind = type(content).__name__
            raise SampleError("text is not text", f"turn {number} has a {kind} as content")

    def _text(self, text: str, role: str, number: int, media: MediaQueue) -> Iterator[RowSegment]:
        if role == "assistant" and not self.assistant_media:
            media.as_text += count_placeholders(text)
            if text:
                yield RowSegment(kind="text", text=text, role=role, turn=number)
            return
        for kind, words in split_placeholders(text):
            if kind == "text":
                yield RowSegment(kind="text", text=words, role=role, turn=number)
            elif not media.is_empty(words):
                yield RowSegment(kind=KINDS[words], media=media.take(words), role=role, turn=number)

    def _part(self, part: Any, role: str, number: int, media: MediaQueue) -> Iterator[RowSegment]:
        """Yield a typed part; its text is meant literally, its medium is inside or the next one."""
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in TEXT_TYPES and isinstance(part.get("text"), str):
            if part["text"]:
                yield RowSegment(kind="text", text=part["text"], role=role, turn=number)
        elif isinstance(kind, str) and kind in KINDS:
            inside = next((part[n] for n in _names(kind) if not is_missing(part.get(n))), None)
            if inside is None and media.is_empty(KINDS[kind]):
                return
            medium = media.take(KINDS[kind]) if inside is None else inside
            yield RowSegment(kind=KINDS[kind], media=medium, role=role, turn=number)
        else:
            raise SampleError("unknown part", f"turn {number} holds {part!r:.100}")


def _names(kind: str) -> tuple[str, ...]:
    return (kind, KINDS[kind], f"{KINDS[kind]}_url", "path", "url", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaShape(MessagesShape):
    """LLaVA, ShareGPT and Cambrian rows: `conversations` with `from` and `value`.

    The images are `image` or `images`; without them the conversation is text only.
    """

    messages: tuple[str, ...] = ("conversations",)
    role_tag: str = "from"
    content_tag: str = "value"
    images: tuple[str, ...] = ("image", "images")
    videos: tuple[str, ...] = ("video", "videos")


ANSWERS = ("a", "assistant")


def talk_segments(value: Any, images: list[Any], videos: list[Any]) -> list[RowSegment]:
    """Return a list of questions and answers, or of turns, as a conversation about media.

    Rows whose questions hold no placeholder mean their media before the first question.
    """
    turns = _turns(value)
    asked = [turn for turn in turns if turn.get("from") not in ("gpt", "assistant")]
    texts = [turn["value"] for turn in asked if isinstance(turn.get("value"), str)]
    if asked and not any(map(count_placeholders, texts)):
        shown = "<image>" * len(images) + "<video>" * len(videos)
        asked[0]["value"] = f"{shown}{asked[0].get('value') or ''}"
    row = {"conversations": turns, "images": images, "videos": videos}
    return list(LlavaShape().shape(row).segments)


def _turns(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(t, dict) for t in value):
        raise SampleError("empty conversation", f"{value!r:.100} is no list of turns")
    answer = next((name for name in ANSWERS if name in value[0]), None)
    if answer is None:
        return [dict(turn) for turn in value]
    return [turn for number, qa in enumerate(value) for turn in _question(qa, answer, number)]


def _question(qa: dict[str, Any], answer: str, number: int) -> list[dict[str, Any]]:
    asked = [text for name, text in qa.items() if name not in (answer, "source") and text]
    if not isinstance(qa.get(answer), str) or not all(isinstance(text, str) for text in asked):
        raise SampleError("missing field", f"question {number} has no text or answer: {qa!r:.100}")
    return [{"from": "human", "value": " ".join(asked)}, {"from": "gpt", "value": qa[answer]}]


PART_OF_PATH = "part of a path"


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
        videos, uses = self.videos(fields)
        name = need_one(fields, self.text, "missing caption")
        if isinstance(fields[name], list):
            segments = talk_segments(fields[name], [], videos)
        else:
            segments = [RowSegment(kind="video", media=video) for video in videos]
            segments.append(RowSegment(kind="text", text=text_of(fields, name)))
        uses[name] = "turns" if isinstance(fields[name], list) else "text"
        gone = [column for column, use in uses.items() if use != PART_OF_PATH]
        document = RowDocument(segments=tuple(segments), uses=uses, extra=unused(fields, gone))
        return in_clip(document, fields, self.clip, self.start, self.end)

    def videos(self, fields: Mapping[str, Any]) -> tuple[list[Any], dict[str, str]]:
        """Return the videos of a row, and the fields that named them."""
        if self.path:
            names = (name for _, name, _, _ in Formatter().parse(self.path) if name)
            return [path_from(self.path, fields)], dict.fromkeys(names, PART_OF_PATH)
        videos, uses = media_list(fields, self.video, "video")
        if not videos:
            wanted = ", ".join(self.video)
            raise SampleError("missing field", f"no video: none of {wanted} holds anything")
        return videos, uses


def path_from(pattern: str, fields: Mapping[str, Any]) -> str:
    """Return the path that a pattern makes of the fields of a row."""
    try:
        known = {name: value for name, value in fields.items() if not is_missing(value)}
        return pattern.format_map(known)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise SampleError("missing field", f"{pattern!r} needs {error} of the row") from error
