"""Where media and answers lie in what a processor wrote.

A processor replaces each placeholder of a rendered chat by delimiters and runs of visual tokens. A
visual rule says the same with each run as one token, so that ids and answers can be followed:

    rendered   user <image> What? assistant A cat. <end>
    written    user <boi><soft><eoi> What? assistant A cat. <end>
    ids        user <boi><soft> x 256 <eoi> What? assistant A cat. <end>

Whatever the rule says can be compared with the processor's own ids, token by token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.model.sample import Segment
from shardmill.model.tokenrow import MediaSpan
from shardmill.tokens.visual.rule import Visual, replace_placeholders


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
