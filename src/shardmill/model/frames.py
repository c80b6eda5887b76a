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


def stride_at_fps(
    num_frames: int,
    video_fps: float,
    *,
    fps: float,
    min_frames: int = 4,
    max_frames: int = 768,
    multiple_of: int = 1,
) -> FrameNumbers:
    """Return `fps` frames a second in equal steps from the first on, down to a multiple."""
    need_rate(video_fps)
    limit = floor(min(max_frames, num_frames) / multiple_of) * multiple_of
    wanted = min(max(num_frames / video_fps * fps, min_frames), limit, num_frames)
    return stride_frames(num_frames, floor(wanted / multiple_of) * multiple_of)


def spread_at_fps(
    num_frames: int, video_fps: float, *, fps: float, min_frames: int = 4, max_frames: int = 768
) -> FrameNumbers:
    """Return `fps` frames a second, spread from the first frame to the last."""
    need_rate(video_fps)
    wanted = int(num_frames / video_fps * fps)
    return spread_frames(num_frames, min(max(wanted, min_frames), max_frames, num_frames))


def check_frames(num_frames: int) -> int:
    """Return the number of frames of a video, if a video can have so many."""
    if num_frames < 1:
        raise UnknownSize("unknown number of frames", "the index has none for this video")
    if num_frames > MAX_FRAMES:
        raise SampleError("absurd number of frames", f"{num_frames}, the limit is {MAX_FRAMES}")
    return num_frames


def need_rate(video_fps: float) -> None:
    """Reject a video whose frame rate is not known."""
    if not video_fps > 0:
        raise UnknownSize("unknown frame rate", "the index has none for this video")
