"""Frames chosen by what they show: one for each scene."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from shardmill.errors import ConfigError
from shardmill.media.framesamplers import check_count
from shardmill.media.videotable import Seconds, VideoTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """The first frame, or the middle one, of each scene: where much changes, a scene begins.

    A change is the mean difference of brightness to the frame before, from 0 to 1, less what was
    moving already. Scenes last at least `min_scene_s`; of too many the strongest changes stay.
    """

    needs_changes: ClassVar[bool] = True

    threshold: float = 0.1
    min_scene_s: float = 0.5
    max_frames: int = 32
    place: Literal["first", "middle"] = "first"

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ConfigError(f"threshold must lie between 0 and 1, got {self.threshold}")
        if not self.min_scene_s >= 0:
            raise ConfigError(f"min_scene_s must be 0 or more, got {self.min_scene_s}")
        check_count("max_frames", self.max_frames)

    def times(self, video: VideoTable) -> Seconds:
        changes = video.changes
        assert changes is not None
        starts = [0]
        for number in np.flatnonzero(changes >= self.threshold).tolist():
            if video.times_s[number] - video.times_s[starts[-1]] >= self.min_scene_s:
                starts.append(number)
        strongest = sorted(starts[1:], key=lambda number: (-float(changes[number]), number))
        firsts = sorted([0, *strongest[: self.max_frames - 1]])
        ends = [*firsts[1:], len(video)]
        middles = [(first + end) // 2 for first, end in zip(firsts, ends)]
        times_s: Seconds = video.times_s[firsts if self.place == "first" else middles]
        return times_s
