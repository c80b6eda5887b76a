"""LLaVA, ShareGPT and Cambrian rows: `conversations` with `from` and `value`."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.sources.shapes.messages import MessagesShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaShape(MessagesShape):
    """A conversation whose pictures are `image` or `images`; without them it is text only."""

    messages: str = "conversations"
    role_tag: str = "from"
    content_tag: str = "value"
    images: tuple[str, ...] = ("image", "images")
    videos: tuple[str, ...] = ("video", "videos")
