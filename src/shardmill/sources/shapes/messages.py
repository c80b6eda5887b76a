"""Conversations: role and content a turn, media by placeholder or as typed parts of the content.

    {"messages": [{"role": "user", "content": "<image>What?"}, ...], "images": ["a.jpg"]}
    {"conversations": [{"from": "human", "value": "<image>What?"}, ...], "image": "a.jpg"}
    [{"i": "Look.", "q": "What?", "a": "A cat."}]    "a" answers, everything else asks

Placeholders count in every turn but the assistant's, where `<image>` is as likely to be a word of
the answer; `assistant_media` lets them count there too, for models that answer with images. Tool
calls, and which call a tool answers, stay with their turn (see `model.sample`); such a turn stands
in the document even if it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardmill.errors import SampleError
from shardmill.model.sample import EXTRA_NAME, SegmentKind, as_written, kept_fields, stored_fields
from shardmill.sources.shapes.shape import (
    MediaQueue,
    RowDocument,
    RowSegment,
    count_placeholders,
    is_missing,
    media_list,
    split_placeholders,
    unused,
)

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
class MessagesShape:
    """`messages` with `role` and `content`, as OpenAI and NeMo write them; names can be changed.

    `roles` says which role each speaker has; a speaker that is not in it makes the row a reject.
    """

    messages: str = "messages"
    role_tag: str = "role"
    content_tag: str = "content"
    images: tuple[str, ...] = ("images", "image")
    videos: tuple[str, ...] = ("videos", "video")
    audios: tuple[str, ...] = ("audios", "audio")
    roles: Mapping[str, str] = field(default_factory=lambda: dict(SPEAKERS))
    system: str = "system"
    tools: str = "tools"
    assistant_media: bool = False

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a conversation."""
        turns = fields.get(self.messages)
        if not isinstance(turns, list) or not turns:
            raise SampleError("empty conversation", f"{self.messages!r} holds no turns")
        media, used = self._media(fields)
        segments: list[RowSegment] = []
        system = fields.get(self.system)
        if isinstance(system, str) and system:
            segments.append(RowSegment(kind="text", text=system, role="system"))
            used.add(self.system)
        kept: dict[str, Any] = {}
        for number, turn in enumerate(turns, len(segments)):
            segments += self._turn(turn, number, media)
            if found := stored_fields(turn):
                kept[str(number)] = found
        media.finish()
        if not segments:
            raise SampleError("empty conversation", f"{len(turns)} turns without text or media")
        extra = unused(fields, {self.messages, EXTRA_NAME, *used})
        if isinstance(extra.get(self.tools), list):
            extra[self.tools] = as_written(extra[self.tools])
        return RowDocument(
            segments=tuple(segments), extra={**extra, EXTRA_NAME: kept} if kept else extra
        )

    def _media(self, fields: Mapping[str, Any]) -> tuple[MediaQueue, set[str]]:
        images, used_images = media_list(fields, self.images)
        videos, used_videos = media_list(fields, self.videos)
        audios, used_audios = media_list(fields, self.audios)
        queue = MediaQueue({"image": images, "video": videos, "audio": audios})
        return queue, used_images | used_videos | used_audios

    def _turn(self, turn: Any, number: int, media: MediaQueue) -> list[RowSegment]:
        if not isinstance(turn, dict):
            raise SampleError("turn is not an object", f"turn {number}: {turn!r:.100}")
        speaker = turn.get(self.role_tag)
        role = self.roles.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            known = ", ".join(sorted(self.roles))
            raise SampleError("unknown role", f"turn {number} is by {speaker!r}, known are {known}")
        segments = list(self._content(turn.get(self.content_tag), role, number, media))
        if not segments and (role == "tool" or kept_fields(turn)):
            return [RowSegment(kind="text", role=role, turn=number)]
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
            else:
                yield RowSegment(kind=KINDS[words], media=media.take(words), role=role, turn=number)

    def _part(self, part: Any, role: str, number: int, media: MediaQueue) -> Iterator[RowSegment]:
        """Yield a typed part; its text is meant literally, its medium is inside or the next one."""
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in TEXT_TYPES and isinstance(part.get("text"), str):
            if part["text"]:
                yield RowSegment(kind="text", text=part["text"], role=role, turn=number)
        elif isinstance(kind, str) and kind in KINDS:
            inside = next((part[n] for n in _names(kind) if not is_missing(part.get(n))), None)
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

    messages: str = "conversations"
    role_tag: str = "from"
    content_tag: str = "value"
    images: tuple[str, ...] = ("image", "images")
    videos: tuple[str, ...] = ("video", "videos")


ANSWER = "a"


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
    if ANSWER not in value[0]:
        return [dict(turn) for turn in value]
    return [turn for number, qa in enumerate(value) for turn in _question(qa, number)]


def _question(qa: dict[str, Any], number: int) -> list[dict[str, Any]]:
    answer = qa.get(ANSWER)
    asked = [text for name, text in qa.items() if name != ANSWER and text]
    if not isinstance(answer, str) or not all(isinstance(text, str) for text in asked):
        raise SampleError("missing field", f"question {number} has no text or answer: {qa!r:.100}")
    return [{"from": "human", "value": " ".join(asked)}, {"from": "gpt", "value": answer}]
