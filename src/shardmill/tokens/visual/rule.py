"""A visual rule: what a model's processor writes into the text in place of one medium.

A chat template marks a medium by a placeholder; the processor replaces it by delimiters and a run
of visual tokens whose length depends on the medium's size. A rule returns that replacement with
each run written as a single token and counted beside it. Visual tokens are special tokens, which
no tokenizer merges with anything, so

    tokens of the sample = tokens of the text with its replacements + num_visual - num_runs

holds to the token, even where delimiters are plain text that merges with its neighbours.

A user's own function from the size of a medium to a number of tokens.

How processors choose the size, or the tiles, to which they resize an image or a video.

All of them are pure functions of height and width; they are compared with the processors' own over
thousands of sizes. Rounding matters: `round` is Python's, half to even, as theirs is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from math import ceil, floor, sqrt
from typing import Protocol, runtime_checkable

from shardmill.errors import ConfigError, SampleError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRule:
    """`path` is "package.module:function", called as f(kind, size) -> number of visual tokens.

    `tokens` gives what the chat template writes for each kind; the processor repeats that token.
    """

    path: str
    tokens: Mapping[str, str] = field(default_factory=lambda: {"image": "<image>"})

    def placeholders(self) -> Mapping[str, str]:
        return self.tokens

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind not in self.tokens:
            raise refuse(self.path, kind)
        num_tokens = load_function(self.path)(kind, size)
        if not isinstance(num_tokens, int) or num_tokens < 1:
            raise ConfigError(f"{self.path} must return a positive int, got {num_tokens!r}")
        return Visual(self.tokens[kind], num_tokens)


@cache
def load_function(path: str) -> Callable[[str, MediaSize], object]:
    """Return the function that 'package.module:function' names."""
    module, colon, name = path.partition(":")
    try:
        found = getattr(import_module(module), name) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot load {path!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{path!r} is not a function of the form 'package.module:function'")
    return found  # type: ignore[no-any-return]


MAX_ASPECT = 200


def fit_area(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Return the multiples of `factor` nearest to an image whose area lies within the limits."""
    return fit_volume(1, 1, height, width, factor, min_pixels, max_pixels)


def fit_video(
    num_frames: int,
    height: int,
    width: int,
    *,
    temporal_patch: int,
    factor: int,
    min_pixels: int,
    max_pixels: int,
) -> tuple[int, int]:
    """Return the frame size for which frames x height x width lies within the limits."""
    if num_frames < temporal_patch:
        raise SampleError("too few frames", f"{num_frames}, a patch takes {temporal_patch}")
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    depth = round(num_frames / temporal_patch) * temporal_patch
    return fit_volume(num_frames, depth, height, width, factor, min_pixels, max_pixels)


def fit_volume(
    num_frames: int,
    depth: int,
    height: int,
    width: int,
    factor: int,
    min_pixels: int,
    max_pixels: int,
) -> tuple[int, int]:
    """Return the frame size for a volume: `depth` is `num_frames` rounded to whole patches."""
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise SampleError("aspect ratio over 200", f"{height} x {width}")
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if depth * tall * wide > max_pixels:
        shrink = sqrt(num_frames * height * width / max_pixels)
        tall = max(factor, floor(height / shrink / factor) * factor)
        wide = max(factor, floor(width / shrink / factor) * factor)
    elif depth * tall * wide < min_pixels:
        grow = sqrt(min_pixels / (num_frames * height * width))
        tall, wide = ceil(height * grow / factor) * factor, ceil(width * grow / factor) * factor
    return tall, wide


def choose_tiles(
    height: int,
    width: int,
    *,
    tile_height: int,
    tile_width: int,
    min_tiles: int,
    max_tiles: int,
) -> tuple[int, int]:
    """Return (rows, columns) of the tiling whose shape is nearest to the image's.

    Among equally near ones the larger wins while it covers less than twice the image's area.
    """
    aspect, area = width / height, width * height
    best, best_distance = (1, 1), float("inf")
    for rows, columns in tilings(min_tiles, max_tiles):
        distance = abs(aspect - columns / rows)
        covered = 0.5 * tile_height * tile_width * columns * rows
        if distance < best_distance or (distance == best_distance and area > covered):
            best, best_distance = (rows, columns), distance
    return best


@lru_cache
def tilings(min_tiles: int, max_tiles: int) -> tuple[tuple[int, int], ...]:
    """Return all (rows, columns) with so many tiles, few tiles first, then few columns."""
    found = [
        (rows, columns)
        for columns in range(1, max_tiles + 1)
        for rows in range(1, max_tiles // columns + 1)
        if rows * columns >= min_tiles
    ]
    return tuple(sorted(found, key=lambda tiling: tiling[0] * tiling[1]))
