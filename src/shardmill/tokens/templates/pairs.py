"""An image and its caption: draw it from the text, or describe it, or by chance one of the two.

    t2i    [bos] caption instruction   boi | codes eoi [eos]     learned: right of the bar
    i2t    [bos] boi codes eoi prompt | caption [eos]
    pair   [bos] caption boi codes eoi [eos], or the image first; everything is learned

A sample without an image is plain text, learned whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from shardmill.errors import ConfigError, SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.template import (
    Medium,
    Piece,
    PlainText,
    Render,
    Text,
    Token,
    control_ids,
    ends,
    text,
)
from shardmill.tokens.text.tokenizer import TextTokenizer

INSTRUCTIONS = (
    "Generate an image based on this description.",
    "Create an image that captures the provided description.",
    "Draw an image of what is described here.",
    "Turn this text into an image.",
    "Paint the scene that these words describe.",
    "Make an image that shows this.",
    "Produce an image that matches the text above.",
    "Show this description as an image.",
    "Illustrate the text.",
    "Render what you have just read as an image.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextToImage:
    """The caption with one of the instructions asks for the image; the image is learned.

    With probability `unconditional` the control token "unconditional" stands for all the text, for
    classifier-free guidance.
    """

    needs_media: ClassVar[bool] = True

    instructions: tuple[str, ...] = INSTRUCTIONS
    unconditional: float = 0.0
    bos: bool = True
    eos: bool = True
    plain: PlainText = field(default_factory=lambda: PlainText(bos=True))

    def __post_init__(self) -> None:
        _check_chance("unconditional", self.unconditional)

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        plain = self.plain.bind(tokenizer, space)
        bos, eos = ends(tokenizer, space, bos=self.bos, eos=self.eos)
        nothing = None
        if self.unconditional > 0:
            nothing = Token(control_ids(tokenizer, space)("unconditional"))

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            image, caption = split_pair(sample)
            if image is None:
                return plain(sample, rng)
            if self.instructions:
                caption += " " + rng.choose("instruction", self.instructions)
            ask: Piece = text(caption)
            if nothing is not None and rng.uniform("unconditional") < self.unconditional:
                ask = nothing
            return [*bos, ask, Medium(image, loss=True), *eos]

        return render


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageToText:
    """The image with the prompt asks for the caption; the caption is learned."""

    needs_media: ClassVar[bool] = True

    prompts: tuple[str, ...] = ("The caption of this image is:",)
    bos: bool = True
    eos: bool = True
    plain: PlainText = field(default_factory=lambda: PlainText(bos=True))

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        plain = self.plain.bind(tokenizer, space)
        bos, eos = ends(tokenizer, space, bos=self.bos, eos=self.eos)

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            image, caption = split_pair(sample)
            if image is None:
                return plain(sample, rng)
            answer: tuple[tuple[str, bool], ...] = ((caption, True),)
            if self.prompts:
                prompt = rng.choose("prompt", self.prompts)
                # Encoded in one go: the space belongs to the caption's first word, as in prose.
                answer = ((prompt, False), (" " + caption, True))
            return [*bos, Medium(image), Text(answer), *eos]

        return render


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPairs:
    """With probability `t2i_ratio` a sample is drawn, otherwise it is described."""

    needs_media: ClassVar[bool] = True

    t2i_ratio: float = 0.5
    t2i: TextToImage = field(default_factory=TextToImage)
    i2t: ImageToText = field(default_factory=ImageToText)

    def __post_init__(self) -> None:
        _check_chance("t2i_ratio", self.t2i_ratio)

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        draw, describe = self.t2i.bind(tokenizer, space), self.i2t.bind(tokenizer, space)

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            chosen = draw if rng.uniform("t2i or i2t") < self.t2i_ratio else describe
            return chosen(sample, rng)

        return render


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionPair:
    """Caption and image side by side, all learned, as for diffusion over both."""

    needs_media: ClassVar[bool] = True

    first: Literal["text", "image"] = "text"
    bos: bool = True
    eos: bool = True

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        bos, eos = ends(tokenizer, space, bos=self.bos, eos=self.eos, learn_bos=True)

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            image, caption = split_pair(sample)
            parts: list[Piece] = [text(caption, True)]
            if image is not None:
                parts.append(Medium(image, loss=True, loss_on_start=True))
            return [*bos, *(parts if self.first == "text" else parts[::-1]), *eos]

        return render


def split_pair(sample: Sample) -> tuple[Segment | None, str]:
    """Return the one image, if any, and the text of a sample."""
    media = sample.document.media()
    if len(media) > 1 or any(segment.kind == "audio" for segment in media):
        raise SampleError("not a pair", f"it has {len(media)} media, one image was expected")
    return (media[0] if media else None), sample.document.text


def _check_chance(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} must lie between 0 and 1, got {value}")
