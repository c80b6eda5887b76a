"""Data sets of images and texts with a layout of their own.

mmc4         {"text_list": ["One.", "Two."], "image_info": [{"matched_text_index": 1, ...}]}
prompt       {"prompt": "<image><image>", "txt": "A cat.", "image_name_list": ["0-0", "0-1"]}
unicontrol   {"source": "edges.png", "target": "cat.png", "prompt": "A cat."}
liquid       {"image_path": "cat.png", "text": "A cat.", "vqcode_512": [...]}
"""

from __future__ import annotations

import re
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmc4Shape:
    """MMC4: `text_list` and `image_info` with `matched_text_index`; the rest of it is kept.

    An image stands just before its sentence and shares its turn, so that a template can put it
    after the sentence instead. Images of one sentence keep their order.
    """

    media: tuple[str, ...] = ("image", "bytes", "path", "image_name", "raw_url")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the interleaved document of a page."""
        sentences = fields.get("text_list")
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise SampleError("missing field", "text_list must be a list of texts")
        images = self._by_sentence(fields.get("image_info") or [], len(sentences))
        segments: list[RowSegment] = []
        for turn, sentence in enumerate(sentences):
            segments += [RowSegment(kind="image", media=m, turn=turn) for m in images.get(turn, ())]
            segments.append(RowSegment(kind="text", text=sentence, turn=turn))
        if not segments:
            raise SampleError("empty document", "text_list is empty")
        return RowDocument(segments=tuple(segments), extra=unused(fields, {"text_list"}))

    def _by_sentence(self, infos: Any, num_sentences: int) -> dict[int, list[Any]]:
        if not isinstance(infos, list):
            raise SampleError("missing field", "image_info must be a list")
        found: dict[int, list[Any]] = {}
        for number, info in enumerate(infos):
            at = info.get("matched_text_index") if isinstance(info, dict) else None
            if not isinstance(at, int) or not 0 <= at < num_sentences:
                detail = f"image {number} is matched to sentence {at!r} of {num_sentences}"
                raise SampleError("image without sentence", detail)
            name = first_of(info, self.media)
            if name is None:
                wanted = ", ".join(self.media)
                raise SampleError("missing field", f"image {number} has none of {wanted}")
            found.setdefault(at, []).append(info[name])
        return found


KEY_FRAME = re.compile(r"<[IP]image>")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptShape:
    """Frames that a video pipeline has packed already: `prompt` shows them, `txt` answers.

    Lists of both take turns. Key frames come with their times, "<Iimage>#0<Pimage>#41"; the marks
    stay text.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class UniControlShape:
    """UniControl: an image of a condition and a prompt ask for the image that they describe.

    `source` and the prompt are the user's, `target` is the assistant's answer.
    """

    source: str = "source"
    target: str = "target"
    text: tuple[str, ...] = ("value", "prompt", "caption")

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a pair of images."""
        prompt = first_of(fields, self.text)
        missing = [n for n in (self.source, self.target) if is_missing(fields.get(n))]
        if prompt is None or missing:
            wanted = missing or [" or ".join(self.text)]
            raise SampleError("missing field", f"{', '.join(wanted)} holds nothing")
        segments = (
            RowSegment(kind="image", media=fields[self.source], role="user"),
            RowSegment(kind="text", text=text_of(fields, prompt), role="user"),
            RowSegment(kind="image", media=fields[self.target], role="assistant", turn=1),
        )
        return RowDocument(
            segments=segments, extra=unused(fields, {self.source, self.target, prompt})
        )


CODE_FIELDS = ("vqcode_512", "vqcode_multi768", "vq_code")
NO_CODES: tuple[Any, ...] = (None, "", "no", [])


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidShape:
    """Liquid's rows: `image_path` and `text` or `text_prompt`, or plain text without an image.

    A row that holds codes needs no image any more; the codes stay among its other fields.
    """

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the document of a pair, or of a text for data_type "text_pretrain"."""
        text = first_of(fields, ("text", "text_prompt"))
        if text is None:
            raise SampleError("missing field", "neither text nor text_prompt holds anything")
        segments = [RowSegment(kind="text", text=text_of(fields, text))]
        has_codes = any(fields.get(name) not in NO_CODES for name in CODE_FIELDS)
        has_image = not is_missing(fields.get("image_path"))
        if fields.get("data_type") != "text_pretrain" and not (has_codes and not has_image):
            if not has_image:
                raise SampleError("missing field", "image_path holds nothing")
            segments.insert(0, RowSegment(kind="image", media=fields["image_path"]))
        return RowDocument(segments=tuple(segments), extra=unused(fields, {text, "image_path"}))
