"""A visual rule: what a model's processor writes into the text in place of one medium.

A chat template marks a medium by a placeholder; the processor replaces it by delimiters and a run
of visual tokens whose length depends on the medium's size. A rule returns that replacement with
each run written as a single token and counted beside it. Visual tokens are special tokens, which
no tokenizer merges with anything, so

    tokens of the sample = tokens of the text with its replacements + num_visual - num_runs

holds to the token, even where delimiters are plain text that merges with its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shardmill.errors import SampleError
from shardmill.model.frames import UnknownSize
from shardmill.model.sample import MediaSize

MAX_RUNS = 1 << 16


@dataclass(frozen=True, slots=True)
class Visual:
    """One medium as a processor writes it: `text` holds each run of visual tokens as one token.

    `num_visual` counts the tokens of all `num_runs` runs; `grid` is (time, height, width) in
    patches, before any merging; `num_outer` counts the delimiters that the chat template itself
    writes around the placeholder.
    """

    text: str
    num_visual: int
    num_runs: int = 1
    grid: tuple[int, int, int] = (1, 1, 1)
    num_outer: int = 0

    @property
    def num_hidden(self) -> int:
        """The visual tokens that `text` does not spell out."""
        return self.num_visual - self.num_runs


@runtime_checkable
class VisualRule(Protocol):
    """A frozen dataclass whose fields are the processor's settings."""

    def placeholders(self) -> Mapping[str, str]:
        """Return what the chat template writes for each kind of medium that the model takes."""

    def count(self, kind: str, size: MediaSize) -> Visual:
        """Return the replacement of one medium; one that the processor refuses is a SampleError."""


def replace_placeholders(
    text: str, placeholders: Mapping[str, str], visuals: Mapping[str, Iterable[Visual]]
) -> str:
    """Return the text in which each placeholder became the next medium of its kind.

    As many placeholders as media must be found, else the sample says one thing and shows another.
    """
    kind_of = {token: kind for kind, token in placeholders.items()}
    waiting = {kind: list(items) for kind, items in visuals.items()}
    found = {kind: text.count(token) for kind, token in placeholders.items()}
    for kind in found.keys() | waiting.keys():
        if found.get(kind, 0) != len(waiting.get(kind, [])):
            raise SampleError(
                "placeholders and media do not match",
                f"{found.get(kind, 0)} placeholders for {len(waiting.get(kind, []))} {kind}s",
            )
    queues = {kind: iter(items) for kind, items in waiting.items()}
    if not queues:
        return text
    pattern = "|".join(re.escape(token) for token in kind_of)
    return re.sub(pattern, lambda match: next(queues[kind_of[match[0]]]).text, text)


def need_size(size: MediaSize) -> tuple[int, int]:
    """Return (height, width), or reject a medium whose index has none."""
    if size.height < 1 or size.width < 1:
        raise UnknownSize("unknown media size", f"the index says {size.height} x {size.width}")
    return size.height, size.width


def check_runs(num_runs: int) -> int:
    """Return the number of runs; a video of which every frame is taken may have absurdly many."""
    if num_runs > MAX_RUNS:
        raise SampleError("too many frames", f"{num_runs} runs of visual tokens, not {MAX_RUNS}")
    return num_runs


def refuse(model: str, kind: str) -> SampleError:
    """Return the error for a kind of medium that a model does not take."""
    return SampleError(f"{model} takes no {kind}")
