"""What is asked of a Hugging Face processor: to render a chat, and to make tensors of its media.

Where media and answers lie in what a processor wrote.

A processor replaces each placeholder of a rendered chat by delimiters and runs of visual tokens. A
visual rule says the same with each run as one token, so that ids and answers can be followed:

    rendered   user <image> What? assistant A cat. <end>
    written    user <boi><soft><eoi> What? assistant A cat. <end>
    ids        user <boi><soft> x 256 <eoi> What? assistant A cat. <end>

Whatever the rule says can be compared with the processor's own ids, token by token.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError, need
from shardmill.model.sample import Segment
from shardmill.model.tokenrow import MediaSpan
from shardmill.tokens.visual.pretrained import rule_of_folder
from shardmill.tokens.visual.qwen import Qwen2VL, Qwen3VL
from shardmill.tokens.visual.rule import Visual, VisualRule, replace_placeholders
from shardmill.train.pixels.video import ChosenFrames


@dataclass(frozen=True, slots=True)
class Medium:
    """A medium of a chat and what the processor writes for it."""

    segment: Segment
    visual: Visual


@dataclass(frozen=True, slots=True)
class Writing:
    """A chat as text in which each run is one token; `bounds` are the characters of each medium.

    `media` stand in the order of the text.
    """

    text: str
    media: tuple[Medium, ...]
    bounds: NDArray[np.int64]
    _ends: NDArray[np.int64]

    def moved(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where characters of the rendered chat, none inside a placeholder, have gone."""
        grown: NDArray[np.int64] = np.concatenate([[0], self.bounds[:, 1] - self._ends])
        return positions + grown[np.searchsorted(self._ends, positions, side="right")]


def write_media(rendered: str, placeholders: Mapping[str, str], media: Sequence[Medium]) -> Writing:
    """Return the chat with its media written out."""
    by_kind: dict[str, list[Medium]] = {}
    for medium in media:
        by_kind.setdefault(medium.segment.kind, []).append(medium)
    visuals = {kind: [medium.visual for medium in found] for kind, found in by_kind.items()}
    text = replace_placeholders(rendered, placeholders, visuals)
    kind_of = {token: kind for kind, token in placeholders.items() if by_kind.get(kind)}
    queues = {kind: iter(found) for kind, found in by_kind.items()}
    placed, bounds, ends, grown = [], [], [], 0
    for match in re.finditer("|".join(map(re.escape, kind_of)) or r"(?!)", rendered):
        placed.append(next(queues[kind_of[match[0]]]))
        start = match.start() + grown
        bounds.append((start, start + len(placed[-1].visual.text)))
        ends.append(match.end())
        grown = bounds[-1][1] - match.end()
    places = np.array(bounds, np.int64).reshape(-1, 2)
    return Writing(text, tuple(placed), places, np.array(ends, np.int64))


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a writing: ids, and the characters of each."""

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Expanded:
    """The ids of a chat, and each token of its writing in them: how often, from where on.

    `runs` are the tokens of the writing that stand for a run.
    """

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    positions: NDArray[np.int64]
    runs: NDArray[np.int64]

    def check(self, ids: NDArray[np.int64]) -> None:
        """Raise `SampleError` unless these are the ids, as a processor made them."""
        if not np.array_equal(self.ids, ids):
            raise SampleError(
                "processor and visual rule differ",
                f"{len(ids)} tokens, {len(self.ids)} by the rule: give PixelReader the rule of "
                "this processor",
            )


def expand(writing: Writing, encoded: Encoded, visual_ids: Sequence[int]) -> Expanded:
    """Return the ids in which each run has its length; runs that are no media are a SampleError."""
    runs = np.flatnonzero(np.isin(encoded.ids, visual_ids))
    visuals = [medium.visual for medium in writing.media]
    num_runs = np.array([visual.num_runs for visual in visuals], np.int64)
    each = np.array([visual.num_visual // visual.num_runs for visual in visuals], np.int64)
    if len(runs) != int(num_runs.sum()):
        raise SampleError(
            "placeholders and media do not match",
            f"{len(runs)} runs of visual tokens in the text, {int(num_runs.sum())} of its media",
        )
    counts = np.ones(len(encoded.ids), np.int64)
    counts[runs] = np.repeat(each, num_runs)
    return Expanded(np.repeat(encoded.ids, counts), counts, np.cumsum(counts) - counts, runs)


def media_spans(writing: Writing, encoded: Encoded, expanded: Expanded) -> tuple[MediaSpan, ...]:
    """Return a span for each run; what stands around it inside its medium belongs to it."""
    spans: list[MediaSpan] = []
    runs = iter(expanded.runs.tolist())
    for medium, (start, end) in zip(writing.media, writing.bounds.tolist()):
        visual, outer = medium.visual, medium.visual.num_outer // 2
        # Tokens that lie in the medium, even in part: text may merge across its edge.
        begin = int(np.searchsorted(encoded.ends, start, side="right")) - outer
        stop = int(np.searchsorted(encoded.starts, end, side="left")) + outer
        is_split = visual.num_runs > 1
        for number in range(visual.num_runs):
            run = next(runs)
            last = number == visual.num_runs - 1
            spans.append(
                MediaSpan(
                    name=medium.segment.media,
                    kind=medium.segment.kind,
                    position=int(expanded.positions[run]),
                    num_tokens=int(expanded.counts[run]),
                    grid=(1, *visual.grid[1:]) if is_split else visual.grid,
                    before=max(0, run - begin),
                    after=max(0, stop - run - 1) if last else 0,
                )
            )
            begin = run + 1
    return tuple(spans)


def learned_tokens(encoded: Encoded, spans: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which tokens lie wholly inside these spans of characters."""
    learned = np.zeros(len(encoded.ids), np.bool_)
    for start, end in spans.tolist():
        inside = (encoded.starts >= start) & (encoded.ends <= end)
        learned |= inside & (encoded.ends > encoded.starts)
    return learned


log = logging.getLogger(__name__)


@dataclass(slots=True)
class PixelProcessor:
    """A processor and its visual rule, which may not be known."""

    processor: Any
    rule: VisualRule | None
    _special: re.Pattern[str] | None = field(default=None, repr=False)

    def render(self, messages: list[dict[str, Any]], *, tools: Any, prompt: bool = False) -> str:
        """Return a chat as the template writes it, with a placeholder for each medium."""
        listed = [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message["content"], str)
            else message
            for message in messages
        ]
        with _refused():
            return str(
                self.processor.apply_chat_template(
                    listed, tokenize=False, tools=tools, add_generation_prompt=prompt
                )
            )

    def make(self, text: str, shown: Sequence[Any]) -> Mapping[str, Any]:
        """Return ids and tensors of a text and the media that its placeholders stand for."""
        with _refused():
            made: Mapping[str, Any] = self.processor(
                text=[text], return_tensors="pt", **_media(shown), **self._begun(text)
            )
        return made

    def marks(self, segments: Sequence[Segment]) -> str:
        """Return the shortest text that shows these media: their placeholders alone."""
        placeholders = self.placeholders()
        for segment in segments:
            if segment.kind not in placeholders:
                raise SampleError(f"the model takes no {segment.kind}")
        return "".join(placeholders[segment.kind] for segment in segments)

    def make_media(self, segments: Sequence[Segment], shown: Sequence[Any]) -> Mapping[str, Any]:
        """Return the tensors of media, for which the rule writes the text."""
        if not shown:
            return {}
        has_grids = isinstance(self.rule, Qwen2VL | Qwen3VL)
        if has_grids and all(segment.kind == "image" for segment in segments):
            # Images alone need no text, which takes a tenth of the time.
            images = self.processor.image_processor
            with _refused():
                made: Mapping[str, Any] = images(images=list(shown), return_tensors="pt")
            return made
        return self.make(self.marks(segments), shown)

    def check_media(self, media: Sequence[Medium], made: Mapping[str, Any]) -> None:
        """Raise `SampleError` unless media take as many tokens as the rule says."""
        if "input_ids" in made:
            bare = write_media(
                self.marks([medium.segment for medium in media]), self.placeholders(), media
            )
            found = expand(bare, self.encode(bare.text), self.visual_ids())
            found.check(np.asarray(made["input_ids"][0], np.int64))
            return
        grids = [list(medium.visual.grid) for medium in media]
        found_grids = made["image_grid_thw"].tolist() if media else []
        if grids != found_grids:
            raise SampleError(
                "processor and visual rule differ", f"grids {found_grids}, {grids} by the rule"
            )

    def placeholders(self) -> Mapping[str, str]:
        """Return what the template writes for each kind of medium."""
        if self.rule is not None:
            return self.rule.placeholders()
        token = getattr(self.processor, "image_token", None)
        return {} if token is None else {"image": token}

    def visual_ids(self) -> list[int]:
        """Return the ids that runs of visual tokens are made of."""
        # To Gemma's processor the image token is what begins an image; its tokenizer knows better.
        owners = (self.processor.tokenizer, self.processor)
        names = ("image_token_id", "video_token_id")
        found = [[getattr(owner, name, None) for owner in owners] for name in names]
        chosen = [next((i for i in ids if i is not None), None) for ids in found]
        return [int(token) for token in chosen if token is not None]

    def encode(self, text: str) -> Encoded:
        """Return the tokens of a text as the processor's tokenizer makes them."""
        # The engine itself: what transformers puts around it takes as long again.
        found = self.processor.tokenizer.backend_tokenizer.encode(
            text, add_special_tokens=not self._begun(text)
        )
        starts, ends = np.array(found.offsets, np.int64).reshape(-1, 2).T
        return Encoded(np.array(found.ids, np.int64), starts, ends)

    def _begun(self, text: str) -> dict[str, bool]:
        # As `apply_chat_template` does: what a template has begun with is not added again.
        begun = self.processor.tokenizer.bos_token
        return {"add_special_tokens": False} if begun and text.startswith(begun) else {}

    def specials(self) -> re.Pattern[str]:
        """Return a pattern of all control tokens."""
        if self._special is None:
            tokens = sorted(self.processor.tokenizer.get_added_vocab(), key=len, reverse=True)
            self._special = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        return self._special


def rule_of(processor: Any) -> VisualRule | None:
    """Return the visual rule of a processor or its folder, or None if that is not known."""
    try:
        if isinstance(processor, str | Path):
            return rule_of_folder(Path(processor))
        with tempfile.TemporaryDirectory() as folder:
            processor.save_pretrained(folder)
            return rule_of_folder(Path(folder))
    except ConfigError as error:
        log.warning("only images can be served: %s", error)
        return None


@contextmanager
def _refused() -> Iterator[None]:
    # An image of absurd shape, a chat that the template does not take: the sample's fault.
    try:
        yield
    except (ValueError, need("jinja2", extra="text").TemplateError) as error:
        raise SampleError("refused by the processor", str(error)) from error


def _media(shown: Sequence[Any]) -> dict[str, Any]:
    images = [medium for medium in shown if not isinstance(medium, ChosenFrames)]
    videos = [medium for medium in shown if isinstance(medium, ChosenFrames)]
    options: dict[str, Any] = {"images": [images]} if images else {}
    if videos:
        options |= {
            "videos": [video.pixels for video in videos],
            "video_metadata": [video.metadata() for video in videos],
            "do_sample_frames": False,
        }
    return options
