"""Three-axis rotary positions (time, height, width) of one document, as Qwen's models count them.

Text moves all three axes together. A medium starts where the text stopped and spreads its tokens
over a grid; after it, text goes on at the start plus the longer side of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError

TEXT, IMAGE, VIDEO = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MropeRule:
    """What differs between the models.

    Qwen2-VL uses the defaults. Qwen2.5-VL spaces the temporal patches of a video by their seconds
    times `tokens_per_second`. Qwen3-VL writes the time before each temporal patch, so that a video
    is as many images (`split_videos`).
    """

    merge_size: int = 2
    tokens_per_second: float | None = None
    split_videos: bool = False

    def __post_init__(self) -> None:
        if self.merge_size < 1:
            raise ConfigError(f"merge_size must be at least 1, got {self.merge_size}")


QWEN2_VL = MropeRule()
QWEN2_5_VL = MropeRule(tokens_per_second=4)
QWEN3_VL = MropeRule(split_videos=True)

Grid = Sequence[int]


def mrope_positions(
    token_types: NDArray[np.integer],
    rule: MropeRule,
    *,
    images: Sequence[Grid] = (),
    videos: Sequence[Grid] = (),
    seconds_per_grid: Sequence[float] | None = None,
) -> NDArray[np.int64]:
    """Return the (3, n) positions of a document.

    `token_types` says of each token whether it is text (0) or belongs to an image (1) or a video
    (2); each run of media tokens takes the next grid of its kind, in patches (t, h, w).
    """
    if rule.split_videos:
        videos = [(1, *grid[1:]) for grid in videos for _ in range(int(grid[0]))]
    grids = {IMAGE: iter(images), VIDEO: iter(videos)}
    seconds = chain(seconds_per_grid or (), repeat(1.0))
    parts: list[NDArray[np.int64]] = []
    position = 0
    for kind, length in _runs(token_types):
        if kind == TEXT:
            parts.append(np.broadcast_to(np.arange(position, position + length), (3, length)))
            position += length
            continue
        grid = next(grids[kind], None)
        if grid is None:
            raise SampleError("more media tokens than media", f"no grid for a run of {length}")
        spacing = _spacing(rule, kind, seconds)
        parts.append(_spread(grid, rule.merge_size, spacing, position, length))
        position += max(int(grid[1]), int(grid[2])) // rule.merge_size
    return np.concatenate(parts, axis=1) if parts else np.empty((3, 0), np.int64)


def _runs(token_types: NDArray[np.integer]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(token_types)) + 1
    bounds = np.concatenate([[0], edges, [len(token_types)]])
    starts, lengths = bounds[:-1], np.diff(bounds)
    return [
        (int(token_types[start]), length)
        for start, length in zip(starts.tolist(), lengths.tolist())
        if length
    ]


def _spacing(rule: MropeRule, kind: int, seconds: Iterator[float]) -> float:
    if kind != VIDEO or rule.tokens_per_second is None:
        return 1.0
    return rule.tokens_per_second * float(next(seconds))


def _spread(
    grid: Grid, merge_size: int, spacing: float, position: int, length: int
) -> NDArray[np.int64]:
    depth, tall, wide = int(grid[0]), int(grid[1]) // merge_size, int(grid[2]) // merge_size
    if depth * tall * wide != length:
        raise SampleError(
            "media tokens do not match their grid",
            f"{length} tokens for a grid of {tuple(map(int, grid))} merged by {merge_size}",
        )
    # The models multiply in single precision before they cut to whole positions.
    times = (np.arange(depth, dtype=np.float32) * np.float32(spacing)).astype(np.int64)
    spread = np.empty((3, depth, tall, wide), np.int64)
    spread[0] = times[:, None, None]
    spread[1] = np.arange(tall)[:, None]
    spread[2] = np.arange(wide)
    return spread.reshape(3, -1) + position
