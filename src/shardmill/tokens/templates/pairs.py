"""An image and its caption: draw it from the text, or describe it, or by chance one of the two.

    t2i    [bos] caption instruction   boi | codes eoi [eos]     learned: right of the bar
    i2t    [bos] boi codes eoi prompt | caption [eos]
    mixed  one of the two
    pair   [bos] caption boi codes eoi [eos], or the image first; everything is learned

A sample without an image is plain text, learned whole. The names "t2i", "i2t" and "liquid" are
settings of `MixedPairs`, on the page of names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
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
class MixedPairs:
    """With probability `t2i_ratio` a sample is drawn, otherwise it is described.

    One of the `instructions` follows a caption that asks for its image, one of the `prompts` an
    image that asks for its caption; either may be a file with one a line. With probability
    `unconditional` the control token "unconditional" stands for all the text that asks, for
    classifier-free guidance. `joined` encodes prompt and caption as one text with a space between,
    as in prose; otherwise each is encoded by itself, as it stands.
    """

    needs_media: ClassVar[bool] = True

    t2i_ratio: float = 0.5
    instructions: Path | tuple[str, ...] | None = INSTRUCTIONS
    prompts: Path | tuple[str, ...] = ("The caption of this image is:",)
    unconditional: float = 0.0
    joined: bool = True
    bos: bool = True
    eos: bool = True
    plain: PlainText = field(default_factory=lambda: PlainText(bos=True))

    def __post_init__(self) -> None:
        for name in ("t2i_ratio", "unconditional"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        plain = self.plain.bind(tokenizer, space)
        bos, eos = ends(tokenizer, space, bos=self.bos, eos=self.eos)
        instructions = self._instructions() if self.t2i_ratio > 0 else ()
        prompts = _lines(self.prompts)
        nothing = None
        if self.t2i_ratio > 0 and self.unconditional > 0:
            nothing = Token(control_ids(tokenizer, space)("unconditional"))

        def draw(image: Segment, caption: str, rng: SampleRng) -> list[Piece]:
            if instructions:
                caption += " " + rng.choose("instruction", instructions)
            ask: Piece = text(caption)
            if nothing is not None and rng.uniform("unconditional") < self.unconditional:
                ask = nothing
            return [ask, Medium(image, loss=True)]

        def describe(image: Segment, caption: str, rng: SampleRng) -> list[Piece]:
            if not prompts:
                return [Medium(image), text(caption, True)]
            prompt = rng.choose("prompt", prompts)
            if not self.joined:
                return [Medium(image), text(prompt), text(caption, True)]
            # Encoded in one go: the space belongs to the caption's first word, as in prose.
            return [Medium(image), Text(((prompt, False), (" " + caption, True)))]

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            image, caption = split_pair(sample)
            if image is None:
                return plain(sample, rng)
            say = draw if rng.uniform("t2i or i2t") < self.t2i_ratio else describe
            return [*bos, *say(image, caption, rng), *eos]

        return render

    def _instructions(self) -> tuple[str, ...]:
        if self.instructions is None:
            raise ConfigError(
                "this template asks for images with instructions of your own: give "
                "instructions=FILE with one a line, or instructions=[] for none"
            )
        return _lines(self.instructions)


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


def _lines(given: Path | tuple[str, ...]) -> tuple[str, ...]:
    """Return texts as they are, and those of a file: one a line, without spaces around it."""
    if not isinstance(given, Path):
        return given
    try:
        lines = given.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {given}, a text a line: {error}") from error
    found = tuple(line.strip() for line in lines if line.strip())
    if not found:
        raise ConfigError(f"{given} is empty: write a text on each line")
    return found
