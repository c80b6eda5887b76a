"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: sizes near the original, in patches merged two by two.

Defaults are those of the published checkpoints as their processors load them; a model folder says
its own. Qwen2 and 2.5 limit the pixels of each frame, Qwen3 those of the whole video, and Qwen3
writes the time of each temporal patch as text before it. All have three-axis positions.

Sizes are pure functions of height and width, compared with the processors' own over thousands of
sizes. Rounding matters: `round` is Python's, half to even, as theirs is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from math import ceil, floor, prod, sqrt
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.model.frames import (
    MAX_FRAMES,
    FrameNumbers,
    check_frames,
    need_rate,
    spread_at_fps,
    spread_frames,
    stride_at_fps,
    stride_frames,
)
from shardmill.model.sample import MediaSize
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.tokens.visual.rule import (
    MAX_RUNS,
    ModelFolder,
    Resize,
    Visual,
    VisualRule,
    check_runs,
    given,
    need_size,
    refuse,
)

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
START, END = "<|vision_start|>", "<|vision_end|>"
MAX_ASPECT = 200  # more is refused by the processors

# What the processors' classes take when no file says it; published checkpoints do.
DEFAULT_IMAGE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
DEFAULT_VIDEO = {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768}
DEFAULT_VIDEO_3 = {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}
DEFAULT_TOKENS_PER_SECOND = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenImages:
    """The settings of the image processor; sizes are multiples of patch_size x merge_size."""

    patch_size: int = 14
    merge_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 16384

    def __post_init__(self) -> None:
        _check_sizes(self)

    @classmethod
    def from_settings(cls, image: Mapping[str, Any]) -> Self:
        """Return the settings of an image processor's file."""
        patches = {"patch_size": 14, "merge_size": 2, **given(image, "patch_size", "merge_size")}
        return cls(**patches, **_pixels({**DEFAULT_IMAGE, **_limits(image)}))

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

    def count_many(self, sizes: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the tokens of many images, as `VisualRule.count_many` does."""
        height, width = sizes.T
        factor = self.patch_size * self.merge_size
        merged, known = _fit_many(1, 1, height, width, factor, self.min_pixels, self.max_pixels)
        return np.where(known, merged, -1).astype(np.int64)

    def arrange(self, image: Any, resize: Resize) -> dict[str, Any]:
        """Return the patches of an image, those that are merged beside each other."""
        height, width = image.shape[:2]
        _, tall, wide = grid = self.count(MediaSize(width=width, height=height)).grid
        image = resize(image, (tall * self.patch_size, wide * self.patch_size))
        patches = cut_patches(image[None], self.patch_size, self.merge_size)
        return {"pixel_values": patches, "image_grid_thw": np.array([grid])}


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

    @classmethod
    def from_settings(
        cls, video: Mapping[str, Any], edges: Mapping[str, int], sampled: bool, **defaults: Any
    ) -> Self:
        """Return the settings of a video processor's file; `sampled`: it chooses frames."""
        names = ("patch_size", "merge_size", "temporal_patch_size", "min_frames", "max_frames")
        fps = video.get("fps", defaults.pop("fps", None)) if sampled else None
        return cls(
            **{**defaults, **given(video, *names, "cap_pixels_per_frame", "max_video_tokens")},
            **_pixels(edges),
            fps=None if fps is None else float(fps),
            num_frames=video.get("num_frames") if sampled else None,
        )

    @property
    def factor(self) -> int:
        """Heights and widths are multiples of this."""
        return self.patch_size * self.merge_size

    def grid(self, num_frames: int, tall: int, wide: int) -> tuple[int, int, int]:
        """Return the patches of a resized video, its last temporal patch filled up."""
        depth = -(-num_frames // self.temporal_patch_size)
        return depth, tall // self.patch_size, wide // self.patch_size

    def arrange(self, frames: Any) -> dict[str, Any]:
        """Return the patches of frames at their size."""
        grid = self.grid(*frames.shape[:3])
        patches = cut_patches(frames, self.patch_size, self.merge_size, self.temporal_patch_size)
        return {"pixel_values_videos": patches, "video_grid_thw": np.array([grid])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2VL(VisualRule):
    """Qwen2-VL."""

    processors: ClassVar[tuple[str, ...]] = ("Qwen2VLProcessor",)
    image_grids: ClassVar[str | None] = "image_grid_thw"

    images: QwenImages = field(default_factory=QwenImages)
    videos: QwenVideos = field(default_factory=QwenVideos)
    # None: temporal patches of a video are one position apart, however long they are.
    tokens_per_second: float | None = None

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Self:
        video = folder.video
        return cls(
            images=QwenImages.from_settings(folder.image),
            videos=QwenVideos.from_settings(
                video, {**DEFAULT_VIDEO, **_limits(video)}, bool(video.get("do_sample_frames"))
            ),
        )

    def placeholders(self) -> Mapping[str, str]:
        return {"image": IMAGE, "video": VIDEO}

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind == "image":
            return self.images.count(size)
        if kind != "video":
            raise refuse("Qwen-VL", kind)
        video = self.videos
        if video.fps is None and video.num_frames is None:
            num_frames = check_frames(size.num_frames)
        else:
            num_frames = len(self.frames(size))
        tall, wide = fit_area(
            *need_size(size),
            factor=video.factor,
            min_pixels=video.min_pixels,
            max_pixels=self._max_pixels(num_frames),
        )
        grid = video.grid(num_frames, tall, wide)
        return Visual(VIDEO, prod(grid) // video.merge_size**2, grid=grid, num_outer=2)

    def count_many(self, kind: str, sizes: NDArray[np.float64]) -> NDArray[np.int64]:
        if kind == "image":
            return self.images.count_many(sizes)
        video, (height, width, total, rate) = self.videos, sizes.T
        if video.num_frames is not None or video.cap_pixels_per_frame:
            return VisualRule.count_many(self, kind, sizes)
        step, frames, usable = video.temporal_patch_size, total, total >= 1
        if video.fps is not None:
            usable = usable & (rate > 0)
            seconds = np.divide(total, rate, out=np.zeros(len(sizes)), where=rate > 0)
            limit = np.minimum(np.minimum(video.max_frames, total) // step * step, total)
            wanted = np.minimum(np.maximum(seconds * video.fps, video.min_frames), limit)
            frames = wanted // step * step
        usable = usable & (frames >= 1) & (total <= MAX_FRAMES)
        merged, known = _fit_many(
            1, 1, height, width, video.factor, video.min_pixels, video.max_pixels
        )
        return np.where(known & usable, merged * np.ceil(frames / step), -1).astype(np.int64)

    def frames(self, size: MediaSize) -> FrameNumbers:
        video = self.videos
        if video.num_frames is not None:
            patches = round(video.num_frames / video.temporal_patch_size)
            return stride_frames(size.num_frames, patches * video.temporal_patch_size)
        if video.fps is None:
            return np.arange(check_frames(size.num_frames))
        return stride_at_fps(
            size.num_frames,
            size.fps,
            fps=video.fps,
            min_frames=video.min_frames,
            max_frames=video.max_frames,
            multiple_of=video.temporal_patch_size,
        )

    def frame_size(self, size: MediaSize) -> tuple[int, int]:
        _, tall, wide = self.count("video", size).grid
        return tall * self.videos.patch_size, wide * self.videos.patch_size

    def arrange(self, image: Any, resize: Resize) -> dict[str, Any]:
        return self.images.arrange(image, resize)

    def arrange_video(self, frames: Any, size: MediaSize) -> dict[str, Any]:
        return self.videos.arrange(frames)

    def positions(self, row: TokenRow, seconds_per_grid: Sequence[float] = ()) -> NDArray[np.int64]:
        return mrope_positions(
            row,
            merge_size=self.images.merge_size,
            tokens_per_second=self.tokens_per_second,
            seconds_per_grid=seconds_per_grid,
        )

    def _max_pixels(self, num_frames: int) -> int:
        video = self.videos
        if not video.cap_pixels_per_frame:
            return video.max_pixels
        # 0.9, 1.05 and the share of a frame are those of qwen_vl_utils.
        budget = int(video.max_video_tokens * video.factor * video.factor * 0.9)
        share = budget * video.temporal_patch_size // num_frames
        return max(min(video.max_pixels, share), int(video.min_pixels * 1.05))


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: positions in a video are seconds times `tokens_per_second`.

    The published checkpoints have 2; a model folder says it in its config.json.
    """

    processors: ClassVar[tuple[str, ...]] = ("Qwen2_5_VLProcessor",)

    tokens_per_second: float | None = 2.0

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Self:
        base = Qwen2VL.from_folder(folder)
        rule = cls(images=base.images, videos=base.videos)
        if not folder.model:
            return rule
        vision = folder.model.get("vision_config") or {}
        rate = float(vision.get("tokens_per_second", DEFAULT_TOKENS_PER_SECOND))
        return cls(images=base.images, videos=base.videos, tokens_per_second=rate)

    def arrange_video(self, frames: Any, size: MediaSize) -> dict[str, Any]:
        need_rate(size.fps)
        rate = len(frames) / size.num_frames * size.fps
        seconds = np.array([self.videos.temporal_patch_size / rate], np.float32)
        return {**self.videos.arrange(frames), "second_per_grid_ts": seconds}


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
class Qwen3VL(VisualRule):
    """Qwen3-VL: each temporal patch of a video is a run of its own, after its time as text."""

    processors: ClassVar[tuple[str, ...]] = ("Qwen3VLProcessor",)
    image_grids: ClassVar[str | None] = "image_grid_thw"

    images: Qwen3Images = field(default_factory=Qwen3Images)
    videos: Qwen3Videos = field(default_factory=Qwen3Videos)

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Self:
        video = folder.video
        return cls(
            images=Qwen3Images.from_settings(folder.image),
            videos=Qwen3Videos.from_settings(
                video,
                {**DEFAULT_VIDEO_3, **(video.get("size") or {})},
                bool(video.get("do_sample_frames", True)),
                fps=2,
            ),
        )

    def placeholders(self) -> Mapping[str, str]:
        return {"image": IMAGE, "video": VIDEO}

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind == "image":
            return self.images.count(size)
        if kind != "video":
            raise refuse("Qwen3-VL", kind)
        video, frames = self.videos, self.frames(size)
        tall, wide = fit_video(
            len(frames),
            *need_size(size),
            temporal_patch=video.temporal_patch_size,
            factor=video.factor,
            min_pixels=video.min_pixels,
            max_pixels=self._max_pixels(len(frames)),
        )
        grid = video.grid(len(frames), tall, wide)
        check_runs(grid[0])
        times = patch_times_s(frames, size.fps, temporal_patch=video.temporal_patch_size)
        text = "".join(f"<{time_s:.1f} seconds>{START}{VIDEO}{END}" for time_s in times)
        num_visual = grid[0] * (prod(grid[1:]) // video.merge_size**2)
        return Visual(text, num_visual, num_runs=grid[0], grid=grid, num_outer=2)

    def count_many(self, kind: str, sizes: NDArray[np.float64]) -> NDArray[np.int64]:
        if kind == "image":
            return self.images.count_many(sizes)
        video, (height, width, total, rate) = self.videos, sizes.T
        if video.num_frames is not None or video.fps is None or video.cap_pixels_per_frame:
            return VisualRule.count_many(self, kind, sizes)
        usable = (total >= 1) & (total <= MAX_FRAMES) & (rate > 0)
        seconds = np.divide(total, rate, out=np.zeros(len(sizes)), where=rate > 0)
        wanted = np.maximum(np.trunc(seconds * video.fps), video.min_frames)
        frames = np.minimum(np.minimum(wanted, video.max_frames), total)
        step = video.temporal_patch_size
        # A frame smaller than a patch is enlarged first.
        short = np.maximum(1, np.minimum(height, width))
        scale = np.where(short < video.factor, video.factor / short, 1.0)
        merged, known = _fit_many(
            frames,
            np.rint(frames / step) * step,
            np.trunc(height * scale),
            np.trunc(width * scale),
            video.factor,
            video.min_pixels,
            video.max_pixels,
        )
        depth = np.ceil(frames / step)
        usable &= (frames >= step) & (depth <= MAX_RUNS) & known
        return np.where(usable, merged * depth, -1).astype(np.int64)

    def frames(self, size: MediaSize) -> FrameNumbers:
        video = self.videos
        if video.num_frames is not None or video.fps is None:
            return spread_frames(size.num_frames, video.num_frames or size.num_frames)
        return spread_at_fps(
            size.num_frames,
            size.fps,
            fps=video.fps,
            min_frames=video.min_frames,
            max_frames=video.max_frames,
        )

    def frame_size(self, size: MediaSize) -> tuple[int, int]:
        _, tall, wide = self.count("video", size).grid
        return tall * self.videos.patch_size, wide * self.videos.patch_size

    def arrange(self, image: Any, resize: Resize) -> dict[str, Any]:
        return self.images.arrange(image, resize)

    def arrange_video(self, frames: Any, size: MediaSize) -> dict[str, Any]:
        return self.videos.arrange(frames)

    def positions(self, row: TokenRow, seconds_per_grid: Sequence[float] = ()) -> NDArray[np.int64]:
        # Times stand in the text, so that temporal patches are placed like images.
        return mrope_positions(row, merge_size=self.images.merge_size)

    def _max_pixels(self, num_frames: int) -> int:
        video = self.videos
        if not video.cap_pixels_per_frame:
            return video.max_pixels
        most = video.max_video_tokens * video.factor * video.factor
        frame = max(min(most, video.max_pixels // num_frames), int(video.min_pixels * 1.05))
        return frame * num_frames


def cut_patches(frames: Any, patch: int, merge: int, moments: int = 1) -> Any:
    """Return the patches [n, moments, patch, patch, 3] of frames [frames, height, width, 3].

    Those that are merged stand beside each other; the last frame is repeated to fill a patch.
    """
    missing = -len(frames) % moments
    if missing:
        frames = frames[[*range(len(frames)), *[-1] * missing]]
    rows, columns = (side // patch // merge for side in frames.shape[1:3])
    # A row of a patch with its channels is one run of bytes, so that few long runs are copied.
    blocks = frames.reshape(-1, moments, rows, merge, patch, columns, merge, patch * 3)
    return blocks.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(-1, moments, patch, patch, 3)


def fit_area(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Return the multiples of `factor` nearest to an image whose area lies within the limits."""
    return _fit_volume(1, 1, height, width, factor, min_pixels, max_pixels)


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
    return _fit_volume(num_frames, depth, height, width, factor, min_pixels, max_pixels)


def _fit_volume(
    num_frames: int,
    depth: int,
    height: int,
    width: int,
    factor: int,
    min_pixels: int,
    max_pixels: int,
) -> tuple[int, int]:
    # `depth` is `num_frames` rounded to whole patches: limits are checked with the one and scaled
    # to with the other, as the processors do.
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


def _fit_many(
    num_frames: Any,
    depth: Any,
    height: NDArray[np.float64],
    width: NDArray[np.float64],
    factor: int,
    min_pixels: int,
    max_pixels: int,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    # `_fit_volume` for arrays: how many merged patches a frame has, and which are not refused.
    known = (height >= 1) & (width >= 1)
    height, width = np.where(known, height, 1.0), np.where(known, width, 1.0)
    known &= np.maximum(height, width) / np.minimum(height, width) <= MAX_ASPECT
    tall, wide = np.rint(height / factor), np.rint(width / factor)
    pixels = depth * (tall * factor) * (wide * factor)
    scaled = []
    for side, nearest in ((height, tall), (width, wide)):
        shrink = np.sqrt(np.maximum(1, num_frames * height * width) / max_pixels)
        grow = np.sqrt(min_pixels / np.maximum(1, num_frames * height * width))
        small = np.maximum(1, np.floor(side / shrink / factor))
        large = np.ceil(side * grow / factor)
        scaled.append(
            np.where(pixels > max_pixels, small, np.where(pixels < min_pixels, large, nearest))
        )
    return scaled[0] * scaled[1], known


def patch_times_s(
    frames: FrameNumbers, video_fps: float, *, temporal_patch: int = 2
) -> list[float]:
    """Return the time of each temporal patch: between its first and its last frame.

    The last frame is repeated to fill the last patch: frames 0, 5, 9 at 10 a second are the
    patches (0, 5) and (9, 9), at 0.25 s and 0.9 s.
    """
    need_rate(video_fps)
    padding = np.full(-len(frames) % temporal_patch, frames[-1])
    times = np.concatenate([frames, padding]) / video_fps
    middles = (times[::temporal_patch] + times[temporal_patch - 1 :: temporal_patch]) / 2
    return [float(time) for time in middles]


def mrope_positions(
    row: TokenRow,
    *,
    merge_size: int,
    tokens_per_second: float | None = None,
    seconds_per_grid: Sequence[float] = (),
) -> NDArray[np.int64]:
    """Return the (3, n) positions (time, height, width) of a document, as Qwen's models count them.

    Text moves all three axes together. A medium starts where the text stopped and spreads its
    tokens over its grid in patches (t, h, w); after it, text goes on at the start plus the longer
    side of the grid. Two tokens of text, an image of 2 x 3 merged patches and one of text:

        time     0 1  2 2 2 2 2 2  5
        height   0 1  2 2 2 3 3 3  5
        width    0 1  2 3 4 2 3 4  5

    With `tokens_per_second`, the temporal patches of a video are spaced by its `seconds_per_grid`,
    one value a video, 1.0 where there is none. A span that its grid does not fill is a
    `SampleError`.
    """
    seconds = chain(seconds_per_grid, repeat(1.0))
    parts = [np.empty((3, 0), np.int64)]
    token = position = 0
    for span in row.media:
        parts.append(_text(position, span.position - token))
        position += span.position - token
        spacing = 1.0
        if span.kind == "video" and tokens_per_second is not None:
            spacing = tokens_per_second * float(next(seconds))
        parts.append(_spread(span, merge_size, spacing) + position)
        position += max(span.grid[1:]) // merge_size
        token = span.position + span.num_tokens
    parts.append(_text(position, len(row.ids) - token))
    return np.concatenate(parts, axis=1)


def _text(position: int, length: int) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(position, position + length, dtype=np.int64), (3, length))


def _spread(span: MediaSpan, merge_size: int, spacing: float) -> NDArray[np.int64]:
    depth, tall, wide = span.grid[0], span.grid[1] // merge_size, span.grid[2] // merge_size
    if depth * tall * wide != span.num_tokens:
        raise SampleError(
            "media tokens do not match their grid",
            f"{span.num_tokens} tokens for a grid of {span.grid} merged by {merge_size}",
        )
    # The models multiply in single precision before they cut to whole positions.
    times = (np.arange(depth, dtype=np.float32) * np.float32(spacing)).astype(np.int64)
    spread = np.empty((3, depth, tall, wide), np.int64)
    spread[0] = times[:, None, None]
    spread[1] = np.arange(tall)[:, None]
    spread[2] = np.arange(wide)
    return spread.reshape(3, -1)


def _limits(settings: Mapping[str, Any]) -> dict[str, Any]:
    # Older files have min_pixels and max_pixels, which win over the size beside them.
    limits = dict(settings.get("size") or {})
    for edge, name in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        if settings.get(name) is not None:
            limits[edge] = settings[name]
    return limits


def _pixels(edges: Mapping[str, Any]) -> dict[str, Any]:
    return {"min_pixels": edges["shortest_edge"], "max_pixels": edges["longest_edge"]}


def _check_sizes(settings: QwenImages | QwenVideos) -> None:
    if settings.patch_size < 1 or settings.merge_size < 1:
        raise ConfigError("patch_size and merge_size must be at least 1")
    if not 1 <= settings.min_pixels <= settings.max_pixels:
        raise ConfigError(
            f"min_pixels must lie between 1 and max_pixels, got {settings.min_pixels} "
            f"and {settings.max_pixels}"
        )
