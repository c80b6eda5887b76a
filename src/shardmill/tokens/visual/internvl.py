"""InternVL: an image becomes equal tiles, and a thumbnail if there are several tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.frames import FrameNumbers, check_frames, stride_frames
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import (
    ModelFolder,
    Resize,
    Visual,
    VisualRule,
    check_runs,
    need_size,
    refuse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVL(VisualRule):
    """InternVL in its Hugging Face form: 256 tokens a tile, one tile a video frame.

    All frames of a video are taken, or the middles of `num_frames` pieces of it, each resized to
    `video_size`, (height, width).
    """

    processors: ClassVar[tuple[str, ...]] = ("InternVLProcessor",)
    video_pixels: ClassVar[str] = "pixel_values"

    tile_size: int = 448
    tokens_per_tile: int = 256
    crop_to_tiles: bool = True
    min_tiles: int = 1
    max_tiles: int = 12
    num_frames: int | None = None
    video_size: tuple[int, int] = (448, 448)
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

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> InternVL:
        image, video = folder.image, folder.video
        size = image.get("size") or {"height": 384, "width": 384}
        if size["height"] != size["width"]:
            raise ConfigError(f"{folder.path}: tiles must be square, got {size}")
        frame = video.get("size") or {"height": 384, "width": 384}
        sampled = bool(video.get("do_sample_frames"))
        if sampled and video.get("num_frames") is None:
            raise ConfigError(f"{folder.path}: set num_frames; a rate of frames is not known here")
        return cls(
            tile_size=size["height"],
            tokens_per_tile=folder.processor.get("image_seq_length", 256),
            min_tiles=image.get("min_patches", 1),
            max_tiles=image.get("max_patches", 12),
            num_frames=video.get("num_frames") if sampled else None,
            video_size=(frame["height"], frame["width"]),
            start=folder.token("start_image_token", "<img>"),
            token=folder.token("context_image_token", "<IMG_CONTEXT>"),
            end=folder.token("end_image_token", "</img>"),
            video_token=folder.token("video_token", "<video>"),
        )

    def placeholders(self) -> Mapping[str, str]:
        return {"image": self.token, "video": self.video_token}

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind == "image":
            rows, columns = self._tiles(*need_size(size))
            # Several tiles are followed by the whole image as one more, the thumbnail.
            num_tiles = rows * columns + (rows * columns > 1)
            text = self.start + self.token + self.end
            return Visual(text, self.tokens_per_tile * num_tiles, grid=(1, rows, columns))
        if kind != "video":
            raise refuse("InternVL", kind)
        num_frames = check_runs(len(self.frames(size)))
        text = "\n".join(
            f"Frame{number}: {self.start}{self.token}{self.end}"
            for number in range(1, num_frames + 1)
        )
        num_visual = self.tokens_per_tile * num_frames
        return Visual(text, num_visual, num_runs=num_frames, grid=(num_frames, 1, 1))

    def count_many(self, kind: str, sizes: NDArray[np.float64]) -> NDArray[np.int64]:
        if kind != "image":
            return VisualRule.count_many(self, kind, sizes)
        height, width = sizes.T
        known = (height >= 1) & (width >= 1)
        best = np.ones(len(sizes), np.int64)
        if self.crop_to_tiles:
            aspect = np.divide(width, height, out=np.ones(len(sizes)), where=known)
            area, nearest = width * height, np.full(len(sizes), np.inf)
            for rows, columns in tilings(self.min_tiles, self.max_tiles):
                distance = np.abs(aspect - columns / rows)
                covered = 0.5 * self.tile_size * self.tile_size * columns * rows
                better = (distance < nearest) | ((distance == nearest) & (area > covered))
                best[better], nearest[better] = rows * columns, distance[better]
        return np.where(known, self.tokens_per_tile * (best + (best > 1)), -1)

    def frames(self, size: MediaSize) -> FrameNumbers:
        if self.num_frames is None:
            return np.arange(check_runs(check_frames(size.num_frames)))
        return stride_frames(size.num_frames, self.num_frames, middle=True)

    def arrange(self, image: Any, resize: Resize) -> dict[str, Any]:
        rows, columns = self._tiles(*image.shape[:2])
        side = self.tile_size
        whole = resize(image, (rows * side, columns * side)).reshape(rows, side, columns, side, 3)
        num_tiles = rows * columns
        tiles = image.new_empty((num_tiles + (num_tiles > 1), side, side, 3))
        tiles[:num_tiles] = whole.transpose(1, 2).reshape(-1, side, side, 3)
        if num_tiles > 1:
            tiles[-1] = resize(image, (side, side))
        return {"pixel_values": tiles}

    def frame_size(self, size: MediaSize) -> tuple[int, int]:
        return self.video_size

    def arrange_video(self, frames: Any, size: MediaSize) -> dict[str, Any]:
        return {"pixel_values": frames}

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        if not self.crop_to_tiles:
            return 1, 1
        return choose_tiles(
            height,
            width,
            tile_size=self.tile_size,
            min_tiles=self.min_tiles,
            max_tiles=self.max_tiles,
        )


def choose_tiles(
    height: int, width: int, *, tile_size: int, min_tiles: int, max_tiles: int
) -> tuple[int, int]:
    """Return (rows, columns) of the tiling whose shape is nearest to the image's.

    Among equally near ones the larger wins while it covers less than twice the image's area.
    """
    aspect, area = width / height, width * height
    best, best_distance = (1, 1), float("inf")
    for rows, columns in tilings(min_tiles, max_tiles):
        distance = abs(aspect - columns / rows)
        covered = 0.5 * tile_size * tile_size * columns * rows
        if distance < best_distance or (distance == best_distance and area > covered):
            best, best_distance = (rows, columns), distance
    return best


@lru_cache
def tilings(min_tiles: int, max_tiles: int) -> tuple[tuple[int, int], ...]:
    """Return all (rows, columns) with so many tiles, few tiles first, then few columns."""
    # The order decides between tilings of one shape: it is that of the processor, whose first sort
    # key is the number of tiles; Python's sort keeps the order of columns inside.
    found = [
        (rows, columns)
        for columns in range(1, max_tiles + 1)
        for rows in range(1, max_tiles // columns + 1)
        if rows * columns >= min_tiles
    ]
    return tuple(sorted(found, key=lambda tiling: tiling[0] * tiling[1]))
