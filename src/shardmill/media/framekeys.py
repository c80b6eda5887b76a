"""Frames chosen by how they are coded: key frames, and those predicted from the past."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardmill.errors import ConfigError, SampleError
from shardmill.media.framesamplers import check_count, middles_s
from shardmill.media.videotable import Seconds, VideoTable
from shardmill.model.frames import FrameNumbers, spread_frames, stride_frames


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
        check_count("i_frames", self.i_frames)
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
        check_count("count", self.count)

    def times(self, video: VideoTable) -> Seconds:
        keys = video.times_s[video.is_key]
        if len(keys) == 0:
            raise SampleError("no key frame", f"between {video.times_s[0]:g} and {video.end_s:g} s")
        # A middle belongs to the key frame on whose side of the halfway point it lies.
        halfway = (keys[1:] + keys[:-1]) / 2
        nearest = np.searchsorted(halfway, middles_s(video, self.count))
        times_s: Seconds = keys[np.unique(nearest)]
        return times_s


def _spread(numbers: FrameNumbers, count: int) -> FrameNumbers:
    return numbers if len(numbers) <= count else numbers[spread_frames(len(numbers), count)]


def _middle(numbers: FrameNumbers, count: int) -> FrameNumbers:
    if len(numbers) <= count or count <= 0:
        return numbers[: max(count, 0)]
    return numbers[stride_frames(len(numbers), count, middle=True)]
