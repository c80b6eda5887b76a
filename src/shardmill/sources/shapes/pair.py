"""Caption pairs: media of one row and the text that belongs to them; and Liquid's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import (
    Piece,
    Shaped,
    first_of,
    is_missing,
    media_list,
    text_of,
    unused,
)

IMAGE_FIELDS = ("image", "images", "image_path", "img_path", "image_url", "url")
VIDEO_FIELDS = ("video", "videos", "video_path", "video_url")
AUDIO_FIELDS = ("audio", "audio_path")
CODE_FIELDS = ("vqcode_512", "vqcode_multi768", "vq_code")
NO_CODES: tuple[Any, ...] = (None, "", "no", [])
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

    def shape(self, fields: Mapping[str, Any]) -> Shaped:
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
        pieces = [Piece(kind="image", media=media) for media in images]
        pieces += [Piece(kind="video", media=media) for media in videos]
        pieces += [Piece(kind="audio", media=media) for media in audios]
        used = used | used_audio | used_image
        if text is not None:
            pieces.append(Piece(kind="text", text=_caption(fields, text)))
            used |= set() if isinstance(fields[text], list) else {text}
        return Shaped(pieces=tuple(pieces), extra=unused(fields, used))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidShape:
    """Liquid's rows: `image_path` and `text` or `text_prompt`, or plain text without an image.

    A row that holds codes needs no image any more; the codes stay among its other fields.
    """

    def shape(self, fields: Mapping[str, Any]) -> Shaped:
        """Return the document of a pair, or of a text for data_type "text_pretrain"."""
        text = first_of(fields, ("text", "text_prompt"))
        if text is None:
            raise SampleError("missing field", "neither text nor text_prompt holds anything")
        pieces = [Piece(kind="text", text=text_of(fields, text))]
        has_codes = any(fields.get(name) not in NO_CODES for name in CODE_FIELDS)
        has_image = not is_missing(fields.get("image_path"))
        if fields.get("data_type") != "text_pretrain" and not (has_codes and not has_image):
            if not has_image:
                raise SampleError("missing field", "image_path holds nothing")
            pieces.insert(0, Piece(kind="image", media=fields["image_path"]))
        return Shaped(pieces=tuple(pieces), extra=unused(fields, {text, "image_path"}))


def _caption(fields: Mapping[str, Any], name: str) -> str:
    value = fields[name]
    return text_of({name: value[0]}, name) if isinstance(value, list) else text_of(fields, name)
