"""Documents said in their own order, without role markers.

    interleaved   bos text [image] text ... eos                    text and images as on the page
    turns         bos question answer eos question answer eos      learned: each answer with its eos
    captions      bos [frame] ... [frame] caption eos              learned: caption, eos
                  bos [frame]#0 ... [frame]#1000 caption eos       with marks behind the frames
                  bos [frame] caption eos [frame] caption eos      clips, each with its caption

Every turn is encoded on its own, as the pipelines do that concatenate such rows to 8k. In captions,
media ask and what is said of them answers; a document that has roles is said as in `turns`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from shardmill.errors import ConfigError, SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import Document, Sample, Segment, turn_fields, with_roles
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.template import (
    Medium,
    Piece,
    Render,
    conversation,
    ends,
    text,
    text_runs,
)
from shardmill.tokens.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaved:
    """Every segment in its place, texts joined by `separator`, as in MMC4 and OBELICS.

    An image belongs to the text that follows it. With `image_first` = 0.8 it stays before that
    text in 8 of 10 cases and moves behind it in the others; None leaves all of them in place.
    """

    image_first: float | None = None
    learn: Literal["all", "text", "media"] = "all"
    separator: str = "\n"
    bos: bool = True
    eos: bool = True

    def __post_init__(self) -> None:
        if self.image_first is not None and not 0 <= self.image_first <= 1:
            raise ConfigError(f"image_first must lie between 0 and 1, got {self.image_first}")

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        bos, eos = ends(tokenizer, space, bos=self.bos, eos=self.eos, learn_bos=True)
        say, show = self.learn in ("all", "text"), self.learn in ("all", "media")

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            pieces: list[Piece] = []
            for run in text_runs(self._placed(sample, rng)):
                if isinstance(run, Segment):
                    pieces.append(Medium(run, loss=show, loss_on_start=show))
                else:
                    pieces.append(text(self.separator.join(run), say))
            return [*bos, *pieces, *eos]

        return render

    def _placed(self, sample: Sample, rng: SampleRng) -> list[Segment]:
        placed: list[Segment] = []
        waiting: list[Segment] = []
        for number, segment in enumerate(sample.document.segments):
            if segment.kind == "text":
                placed += [segment, *waiting]
                waiting = []
            # Named after its place, so that each image has a choice of its own.
            elif self.image_first is None or rng.uniform(f"place {number}") < self.image_first:
                placed.append(segment)
            else:
                waiting.append(segment)
        return placed + waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Turns one after the other; the text of a turn is split only by its media."""

    bos: bool = True

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        bos, eos = ends(tokenizer, space, bos=self.bos, eos=True)

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            if any("tool_calls" in fields for fields in turn_fields(sample).values()):
                raise SampleError("tool calls", "turns without markers cannot say them: use chat")
            pieces: list[Piece] = list(bos)
            for role, segments in conversation(sample):
                learned = role == "assistant"
                for run in text_runs(segments):
                    if isinstance(run, Segment):
                        pieces.append(Medium(run, loss=learned, loss_on_start=learned))
                    else:
                        pieces.append(text("\n".join(run), learned))
                if learned:
                    pieces += eos
            return pieces

        return render


@dataclass(frozen=True, slots=True, kw_only=True)
class Captions:
    """Every caption is an answer; one of the `questions`, if there are any, follows its media."""

    questions: tuple[str, ...] = ()
    turns: Turns = field(default_factory=Turns)

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        say = self.turns.bind(tokenizer, space)

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            if any(segment.role is not None for segment in sample.document.segments):
                return say(sample, rng)
            question = rng.choose("question", self.questions) if self.questions else ""
            turns = tuple(with_roles(sample.document, question))
            return say(replace(sample, document=Document(turns)), rng)

        return render
