"""Which frames are taken: each sampler is a pure function from a video's table to times.

A sampler sees what demuxing tells (see `VideoTable`), of the whole video or of the clip that is
meant, and returns seconds; the frame that is shown at a time is the one that is taken. Midpoints of
three segments of a clip of nine seconds are 1.5, 4.5 and 7.5 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from shardmill.errors import ConfigError, SampleError
from shardmill.media.videotable import Seconds, VideoTable
from shardmill.model.frames import (
    FrameNumbers,
    qwen2_frames,
    qwen3_frames,
    spread_frames,
    stride_frames,
)


@runtime_checkable
class FrameSampler(Protocol):
    """A frozen dataclass that chooses frames."""

    def times(self, video: VideoTable) -> Sequence[float] | Seconds:
        """Return the seconds at which frames are taken; a video that has none is a SampleError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeVideo:
    """Every frame; a stage leaves the video's bytes as they are.

    With `check` the stage walks through all packets and rejects what is broken or cut off.
    """

    check: bool = True

    def times(self, video: VideoTable) -> Seconds:
        return video.times_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """The frames in the middle of `count` equal segments of time."""

    count: int = 16

    def __post_init__(self) -> None:
        _check_count("count", self.count)

    def times(self, video: VideoTable) -> Seconds:
        return _different(video, middles_s(video, self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fps:
    """The frames that a model's processor takes: `fps` a second, within limits.

    `rule` is "qwen2" (down to whole temporal patches, from the first frame on in equal steps) or
    "qwen3" (spread from the first frame to the last); the planner counts by the same functions.
    """

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    temporal_patch: int = 2
    rule: Literal["qwen2", "qwen3"] = "qwen2"

    def __post_init__(self) -> None:
        if not self.fps > 0:
            raise ConfigError(f"fps must be positive, got {self.fps}")
        for name in ("min_frames", "max_frames", "temporal_patch"):
            _check_count(name, getattr(self, name))
        if self.min_frames > self.max_frames:
            raise ConfigError(f"min_frames {self.min_frames} is over max_frames {self.max_frames}")

    def times(self, video: VideoTable) -> Seconds:
        limits = {"fps": self.fps, "min_frames": self.min_frames, "max_frames": self.max_frames}
        if self.rule == "qwen3":
            numbers = qwen3_frames(len(video), video.fps, **limits)  # type: ignore[arg-type]
        else:
            numbers = qwen2_frames(
                len(video),
                video.fps,
                temporal_patch=self.temporal_patch,
                **limits,  # type: ignore[arg-type]
            )
        return video.times_s[numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyframes:
    """`i_frames` key frames and `p_frames` frames between them, merged in the order of time.

    Key frames are spread from the first to the last; the last frame of the video counts as one of
    them, whatever it is, so that the end is always seen. The frames between are predicted from the
    past (P), the middle ones of equal pieces; they also make up for key frames that are missing.
    """

    i_frames: int = 8
    p_frames: int = 16

    def __post_init__(self) -> None:
        _check_count("i_frames", self.i_frames)
        if self.p_frames < 0:
            raise ConfigError(f"p_frames must be 0 or more, got {self.p_frames}")

    def times(self, video: VideoTable) -> Seconds:
        is_i, last = video.is_key.copy(), len(video) - 1
        is_i[last] = True
        i_frames = _spread(np.flatnonzero(is_i), self.i_frames)
        total = self.i_frames + self.p_frames if self.p_frames else len(i_frames)
        p_frames = _middle(np.flatnonzero(video.is_forward & ~is_i), total - len(i_frames))
        numbers: FrameNumbers = np.sort(np.concatenate([i_frames, p_frames]))
        return video.times_s[numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestKeyframes:
    """The key frames nearest to the middles of `count` segments, each once.

    Only key frames are decoded: some twenty times cheaper than the exact frames, and as many of
    them as the video has.
    """

    count: int = 16

    def __post_init__(self) -> None:
        _check_count("count", self.count)

    def times(self, video: VideoTable) -> Seconds:
        keys = video.times_s[video.is_key]
        if len(keys) == 0:
            raise SampleError("no key frame", f"between {video.times_s[0]:g} and {video.end_s:g} s")
        # A middle belongs to the key frame on whose side of the halfway point it lies.
        halfway = (keys[1:] + keys[:-1]) / 2
        nearest = np.searchsorted(halfway, middles_s(video, self.count))
        times_s: Seconds = keys[np.unique(nearest)]
        return times_s


def middles_s(video: VideoTable, count: int) -> Seconds:
    """Return the middles of `count` equal segments of the time in which the video is shown."""
    middles: Seconds = (2 * np.arange(count) + 1) / np.float64(2 * count)
    times_s: Seconds = float(video.times_s[0]) + video.duration_s * middles
    return times_s


def _different(video: VideoTable, times_s: Seconds) -> Seconds:
    numbers = video.numbers_at(times_s)
    if len(np.unique(numbers)) < len(numbers):
        raise SampleError("too few frames", f"{len(video)} for {len(numbers)} different ones")
    return video.times_s[numbers]


def _spread(numbers: FrameNumbers, count: int) -> FrameNumbers:
    return numbers if len(numbers) <= count else numbers[spread_frames(len(numbers), count)]


def _middle(numbers: FrameNumbers, count: int) -> FrameNumbers:
    if len(numbers) <= count or count <= 0:
        return numbers[: max(count, 0)]
    return numbers[stride_frames(len(numbers), count, middle=True)]


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}")
