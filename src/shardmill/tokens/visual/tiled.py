"""InternVL: an image becomes equal tiles, and a thumbnail if there are several tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardmill.errors import ConfigError
from shardmill.model.frames import FrameNumbers, check_frames, stride_frames
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import Visual, check_runs, choose_tiles, need_size, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVL:
    """InternVL in its Hugging Face form: 256 tokens a tile, one tile a video frame.

    All frames of a video are taken, or the middles of `num_frames` pieces of it.
    """

    tile_size: int = 448
    tokens_per_tile: int = 256
    crop_to_tiles: bool = True
    min_tiles: int = 1
    max_tiles: int = 12
    num_frames: int | None = None
    start: str = "<img>"
    token: str = "<IMG_CONTEXT>"
    end: str = "</img>"
    video_token: str = "<video>"

    def __post_init__(self) -> None:
        if not 1 <= self.min_tiles <= self.max_tiles <= 1024:
            raise ConfigError(
                f"1 <= min_tiles <= max_tiles <= 1024 must hold, "
                f"got {self.min_tiles} and {self.max_tiles}"
            )
        if self.num_frames is not None and self.num_frames < 1:
            raise ConfigError(f"num_frames must be at least 1, got {self.num_frames}")

    def placeholders(self) -> Mapping[str, str]:
        return {"image": self.token, "video": self.video_token}

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind == "image":
            rows, columns, num_tiles = self._tiles(*need_size(size))
            num_visual = self.tokens_per_tile * num_tiles
            text = self.start + self.token + self.end
            return Visual(text, num_visual, grid=(1, rows, columns))
        if kind != "video":
            raise refuse("InternVL", kind)
        num_frames = check_runs(len(self.frames(size)))
        text = "\n".join(
            f"Frame{number}: {self.start}{self.token}{self.end}"
            for number in range(1, num_frames + 1)
        )
        num_visual = self.tokens_per_tile * num_frames
        return Visual(text, num_visual, num_runs=num_frames, grid=(num_frames, 1, 1))

    def _tiles(self, height: int, width: int) -> tuple[int, int, int]:
        if not self.crop_to_tiles:
            return 1, 1, 1
        rows, columns = choose_tiles(
            height,
            width,
            tile_height=self.tile_size,
            tile_width=self.tile_size,
            min_tiles=self.min_tiles,
            max_tiles=self.max_tiles,
        )
        return rows, columns, rows * columns + (rows * columns > 1)

    def frames(self, size: MediaSize) -> FrameNumbers:
        """Return which frames the processor takes."""
        if self.num_frames is None:
            return np.arange(check_runs(check_frames(size.num_frames)))
        return stride_frames(size.num_frames, self.num_frames, middle=True)
