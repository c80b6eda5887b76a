"""Which frames of a video a model's processor looks at: arithmetic on counts and rates alone.

Whoever samples frames and whoever counts their tokens calls these same functions, so a planned
length is the length that is read. Each returns frame numbers in order; a video that cannot be
sampled is a `SampleError`.
"""

from __future__ import annotations

from math import floor

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError

FrameNumbers = NDArray[np.int64]
MAX_FRAMES = 1 << 24  # three days at 60 frames a second; more is a broken header


class UnknownSize(SampleError):
    """A medium whose header did not say what must be known to count its tokens."""


def spread_frames(num_frames: int, count: int) -> FrameNumbers:
    """Return `count` frame numbers from the first to the last, evenly spread and rounded."""
    check_frames(num_frames)
    return np.linspace(0, num_frames - 1, count).round().astype(np.int64)


def stride_frames(num_frames: int, count: int, *, middle: bool = False) -> FrameNumbers:
    """Return the first frames, or the middle ones, of `count` equal pieces of a video.

    In whole numbers: 9 frames in 2 pieces begin at 0 and 4, with their middles at 2 and 6. (The
    processors step in floating point; for one video in twenty they arrive at a frame after the
    last one and fail.)
    """
    check_frames(num_frames)
    if not 1 <= count <= num_frames:
        raise SampleError("too few frames", f"{count} frames of a video of {num_frames}")
    return (2 * np.arange(count) + middle) * num_frames // (2 * count)


def qwen2_frames(
    num_frames: int,
    video_fps: float,
    *,
    fps: float,
    min_frames: int = 4,
    max_frames: int = 768,
    temporal_patch: int = 2,
) -> FrameNumbers:
    """Return the frames of Qwen2-VL and Qwen2.5-VL: `fps` a second, down to whole patches."""
    _need_rate(video_fps)
    limit = floor(min(max_frames, num_frames) / temporal_patch) * temporal_patch
    wanted = min(max(num_frames / video_fps * fps, min_frames), limit, num_frames)
    return stride_frames(num_frames, floor(wanted / temporal_patch) * temporal_patch)


def qwen3_frames(
    num_frames: int, video_fps: float, *, fps: float, min_frames: int = 4, max_frames: int = 768
) -> FrameNumbers:
    """Return the frames of Qwen3-VL: `fps` a second, spread from the first frame to the last."""
    _need_rate(video_fps)
    wanted = int(num_frames / video_fps * fps)
    return spread_frames(num_frames, min(max(wanted, min_frames), max_frames, num_frames))


def patch_times_s(
    frames: FrameNumbers, video_fps: float, *, temporal_patch: int = 2
) -> list[float]:
    """Return the time of each temporal patch: between its first and its last frame.

    The last frame is repeated to fill the last patch: frames 0, 5, 9 at 10 a second are the
    patches (0, 5) and (9, 9), at 0.25 s and 0.9 s.
    """
    _need_rate(video_fps)
    padding = np.full(-len(frames) % temporal_patch, frames[-1])
    times = np.concatenate([frames, padding]) / video_fps
    middles = (times[::temporal_patch] + times[temporal_patch - 1 :: temporal_patch]) / 2
    return [float(time) for time in middles]


def check_frames(num_frames: int) -> int:
    """Return the number of frames of a video, if a video can have so many."""
    if num_frames < 1:
        raise UnknownSize("unknown number of frames", "the index has none for this video")
    if num_frames > MAX_FRAMES:
        raise SampleError("absurd number of frames", f"{num_frames}, the limit is {MAX_FRAMES}")
    return num_frames


def _need_rate(video_fps: float) -> None:
    if not video_fps > 0:
        raise UnknownSize("unknown frame rate", "the index has none for this video")
