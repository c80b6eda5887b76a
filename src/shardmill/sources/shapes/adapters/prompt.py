"""Frames that a video pipeline has packed already: `prompt` shows them, `txt` answers.

{"prompt": "<image><image>", "txt": "A cat.", "image_name_list": ["000000000-0", ...]}
{"prompt": "<Iimage>#0<Pimage>#41", "txt": "A cat.", ...}     key frames with their times
{"prompt": ["<image>What?", "And?"], "txt": ["A cat.", "A dog."], ...}    turns
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.messages import talk_segments
from shardmill.sources.shapes.shape import RowDocument, is_missing, media_list, unused

KEY_FRAME = re.compile(r"<[IP]image>")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptShape:
    """One prompt and text, or lists of them that take turns; a mark such as #41 stays text."""

    prompt: str = "prompt"
    text: str = "txt"
    image: tuple[str, ...] = ("images", "image", "image_name_list")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the conversation about packed frames."""
        prompts, texts = _texts(fields, self.prompt), _texts(fields, self.text)
        if len(prompts) != len(texts):
            raise SampleError("missing field", f"{len(prompts)} prompts, {len(texts)} texts")
        turns: list[dict[str, str]] = []
        for prompt, text in zip(prompts, texts):
            turns.append({"from": "human", "value": KEY_FRAME.sub("<image>", prompt)})
            turns.append({"from": "gpt", "value": text})
        images, _ = media_list(fields, self.image)
        extra = unused(fields, {self.prompt, self.text, *self.image})
        return RowDocument(segments=tuple(talk_segments(turns, images, [])), extra=extra)


def _texts(fields: Mapping[str, Any], name: str) -> list[str]:
    value = fields.get(name)
    if is_missing(value):
        raise SampleError("missing field", f"{name!r} holds nothing")
    given = value if isinstance(value, list) else [value]
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given):
        raise SampleError("text is not text", f"{name!r} holds {value!r:.100}")
    return texts
