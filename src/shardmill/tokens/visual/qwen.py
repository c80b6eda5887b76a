"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: sizes near the original, in patches merged two by two.

Defaults are those of the published checkpoints as their processors load them; a model folder says
its own (see `pretrained`). Qwen2 and 2.5 limit the pixels of each frame, Qwen3 those of the whole
video, and Qwen3 writes the time of each temporal patch as text before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from shardmill.errors import ConfigError
from shardmill.model.frames import (
    FrameNumbers,
    check_frames,
    patch_times_s,
    qwen2_frames,
    qwen3_frames,
    spread_frames,
    stride_frames,
)
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import Visual, check_runs, fit_area, fit_video, need_size, refuse

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
START, END = "<|vision_start|>", "<|vision_end|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenImages:
    """The settings of the image processor; sizes are multiples of patch_size x merge_size."""

    patch_size: int = 14
    merge_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 16384

    def __post_init__(self) -> None:
        _check_sizes(self)

    def count(self, size: MediaSize) -> Visual:
        """Return one image."""
        tall, wide = fit_area(
            *need_size(size),
            factor=self.patch_size * self.merge_size,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
        )
        grid = (1, tall // self.patch_size, wide // self.patch_size)
        return Visual(IMAGE, prod(grid) // self.merge_size**2, grid=grid, num_outer=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVideos:
    """The settings of the video processor.

    `num_frames` frames are taken, or else `fps` a second, or all of them if both are None.
    `cap_pixels_per_frame` spreads a budget of `max_video_tokens` as the models' own tools do.
    """

    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 16384
    fps: float | None = None
    num_frames: int | None = None
    min_frames: int = 4
    max_frames: int = 768
    cap_pixels_per_frame: bool = False
    max_video_tokens: int = 128_000

    def __post_init__(self) -> None:
        _check_sizes(self)
        if self.fps is not None and not self.fps > 0:
            raise ConfigError(f"fps of videos must be positive, got {self.fps}")
        if self.num_frames is not None and self.num_frames < 1:
            raise ConfigError(f"num_frames of videos must be at least 1, got {self.num_frames}")

    @property
    def factor(self) -> int:
        """Heights and widths are multiples of this."""
        return self.patch_size * self.merge_size

    def grid(self, num_frames: int, tall: int, wide: int) -> tuple[int, int, int]:
        """Return the patches of a resized video, its last temporal patch filled up."""
        depth = -(-num_frames // self.temporal_patch_size)
        return depth, tall // self.patch_size, wide // self.patch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2VL:
    """Qwen2-VL and Qwen2.5-VL."""

    images: QwenImages = field(default_factory=QwenImages)
    videos: QwenVideos = field(default_factory=QwenVideos)

    def placeholders(self) -> Mapping[str, str]:
        return {"image": IMAGE, "video": VIDEO}

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind == "image":
            return self.images.count(size)
        if kind != "video":
            raise refuse("Qwen-VL", kind)
        num_frames = self.count_frames(size)
        tall, wide = fit_area(
            *need_size(size),
            factor=self.videos.factor,
            min_pixels=self.videos.min_pixels,
            max_pixels=self._max_pixels(num_frames),
        )
        grid = self.videos.grid(num_frames, tall, wide)
        return Visual(VIDEO, prod(grid) // self.videos.merge_size**2, grid=grid, num_outer=2)

    def count_frames(self, size: MediaSize) -> int:
        """Return how many frames the processor takes."""
        if self.videos.fps is None and self.videos.num_frames is None:
            return check_frames(size.num_frames)
        return len(self.frames(size))

    def frames(self, size: MediaSize) -> FrameNumbers:
        """Return which frames the processor takes: those it chooses, or all."""
        video = self.videos
        if video.num_frames is not None:
            patches = round(video.num_frames / video.temporal_patch_size)
            return stride_frames(size.num_frames, patches * video.temporal_patch_size)
        if video.fps is None:
            return np.arange(check_frames(size.num_frames))
        return qwen2_frames(
            size.num_frames,
            size.fps,
            fps=video.fps,
            min_frames=video.min_frames,
            max_frames=video.max_frames,
            temporal_patch=video.temporal_patch_size,
        )

    def _max_pixels(self, num_frames: int) -> int:
        video = self.videos
        if not video.cap_pixels_per_frame:
            return video.max_pixels
        budget = int(video.max_video_tokens * video.factor * video.factor * 0.9)
        share = budget * video.temporal_patch_size // num_frames
        return max(min(video.max_pixels, share), int(video.min_pixels * 1.05))


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Images(QwenImages):
    """The same settings with the defaults of Qwen3-VL."""

    patch_size: int = 16
    min_pixels: int = 256 * 256
    max_pixels: int = 4096 * 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Videos(QwenVideos):
    """The same settings with the defaults of Qwen3-VL, whose limits are those of whole videos."""

    patch_size: int = 16
    min_pixels: int = 64 * 64
    max_pixels: int = 32 * 32 * 24576
    fps: float | None = 2.0
    max_video_tokens: int = 768


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3VL:
    """Qwen3-VL."""

    images: Qwen3Images = field(default_factory=Qwen3Images)
    videos: Qwen3Videos = field(default_factory=Qwen3Videos)

    def placeholders(self) -> Mapping[str, str]:
        return {"image": IMAGE, "video": VIDEO}

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind == "image":
            return self.images.count(size)
        if kind != "video":
            raise refuse("Qwen3-VL", kind)
        frames = self.frames(size)
        tall, wide = fit_video(
            len(frames),
            *need_size(size),
            temporal_patch=self.videos.temporal_patch_size,
            factor=self.videos.factor,
            min_pixels=self.videos.min_pixels,
            max_pixels=self._max_pixels(len(frames)),
        )
        grid = self.videos.grid(len(frames), tall, wide)
        check_runs(grid[0])
        times = patch_times_s(frames, size.fps, temporal_patch=self.videos.temporal_patch_size)
        text = "".join(f"<{time_s:.1f} seconds>{START}{VIDEO}{END}" for time_s in times)
        num_visual = grid[0] * (prod(grid[1:]) // self.videos.merge_size**2)
        return Visual(text, num_visual, num_runs=grid[0], grid=grid, num_outer=2)

    def frames(self, size: MediaSize) -> FrameNumbers:
        """Return which frames the processor takes."""
        video = self.videos
        if video.num_frames is not None or video.fps is None:
            return spread_frames(size.num_frames, video.num_frames or size.num_frames)
        return qwen3_frames(
            size.num_frames,
            size.fps,
            fps=video.fps,
            min_frames=video.min_frames,
            max_frames=video.max_frames,
        )

    def _max_pixels(self, num_frames: int) -> int:
        video = self.videos
        if not video.cap_pixels_per_frame:
            return video.max_pixels
        most = video.max_video_tokens * video.factor * video.factor
        frame = max(min(most, video.max_pixels // num_frames), int(video.min_pixels * 1.05))
        return frame * num_frames


def _check_sizes(settings: QwenImages | QwenVideos) -> None:
    if settings.patch_size < 1 or settings.merge_size < 1:
        raise ConfigError("patch_size and merge_size must be at least 1")
    if not 1 <= settings.min_pixels <= settings.max_pixels:
        raise ConfigError(
            f"min_pixels must lie between 1 and max_pixels, got {settings.min_pixels} "
            f"and {settings.max_pixels}"
        )
