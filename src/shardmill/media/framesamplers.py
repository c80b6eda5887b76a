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
from shardmill.model.frames import qwen2_frames, qwen3_frames


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
class AllFrames:
    """Every frame as a picture; for short clips, and for lists of frames taken by others."""

    def times(self, video: VideoTable) -> Seconds:
        return video.times_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """The frames in the middle of `count` equal segments of time.

    A video of fewer frames is rejected; where one frame stands still for long it is taken again.
    """

    count: int = 16

    def __post_init__(self) -> None:
        check_count("count", self.count)

    def times(self, video: VideoTable) -> Seconds:
        if len(video) < self.count:
            raise SampleError("too few frames", f"{len(video)}, {self.count} are wanted")
        return middles_s(video, self.count)


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
            check_count(name, getattr(self, name))
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


def middles_s(video: VideoTable, count: int) -> Seconds:
    """Return the middles of `count` equal segments of the time in which the video is shown."""
    middles: Seconds = (2 * np.arange(count) + 1) / np.float64(2 * count)
    times_s: Seconds = float(video.times_s[0]) + video.duration_s * middles
    return times_s


def check_count(name: str, value: int) -> None:
    """Raise `ConfigError` unless a field is a number of at least 1."""
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}")
