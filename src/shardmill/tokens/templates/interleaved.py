"""Text and images in the order of the page, as in MMC4 and OBELICS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardmill.errors import ConfigError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.template import Medium, Piece, Render, Text
from shardmill.tokens.templates.text import PlainText
from shardmill.tokens.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaved:
    """Every segment in its place, texts joined by `separator`.

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
        bos, eos = PlainText(bos=self.bos, eos=self.eos).ends(tokenizer, space)
        say, show = self.learn in ("all", "text"), self.learn in ("all", "media")

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            pieces: list[Piece] = []
            for run in text_runs(self._placed(sample, rng)):
                if isinstance(run, Segment):
                    pieces.append(Medium(run, loss=show, loss_on_start=show))
                else:
                    pieces.append(Text(((self.separator.join(run), say),)))
            return [*bos, *pieces, *eos]

        return render

    def _placed(self, sample: Sample, rng: SampleRng) -> list[Segment]:
        placed: list[Segment] = []
        waiting: list[Segment] = []
        for number, segment in enumerate(sample.document.segments):
            if segment.kind == "text":
                placed += [segment, *waiting]
                waiting = []
            elif self.image_first is None or rng.uniform(f"place {number}") < self.image_first:
                placed.append(segment)
            else:
                waiting.append(segment)
        return placed + waiting


def text_runs(segments: list[Segment]) -> list[Segment | list[str]]:
    """Return media as they are, and the texts that stand next to each other as one list."""
    runs: list[Segment | list[str]] = []
    for segment in segments:
        if segment.kind != "text":
            runs.append(segment)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(segment.text)
        else:
            runs.append([segment.text])
    return runs
