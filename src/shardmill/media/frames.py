"""Reads frames of a video: opened, probed, chosen by a sampler, decoded, as they are displayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardmill.media.decodeframes import decode_frames
from shardmill.media.framechanges import measure_changes
from shardmill.media.framepictures import FramePainter
from shardmill.media.framesamplers import FrameSampler
from shardmill.media.probevideo import probe_video
from shardmill.media.videofile import OpenVideo, Video, broken_as, open_video
from shardmill.media.videotable import VideoTable
from shardmill.model.frames import FrameNumbers

Clip = tuple[float, float]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame: its number and time in the whole video, and its pixels [height, width, 3]."""

    number: int
    time_s: float
    pixels: NDArray[np.uint8]


def read_frames(
    video: Video,
    sampler: FrameSampler,
    *,
    clip: Clip | None = None,
    long_side: int | None = None,
    threads: int = 1,
) -> list[Frame]:
    """Return the frames that a sampler picks of a video, or of its part [start, end) in seconds.

    `video` is bytes, a path or url, or a part of a blob. What cannot be read is a `SampleError`.
    """
    painter = FramePainter(long_side)
    with open_video(video, threads=threads) as opened:
        table = look_at(opened, sampler, clip)
        numbers = table.numbers_at(sampler.times(table))
        pixels = decode_each(opened, table, numbers, painter.rgb)
    return [
        Frame(table.first_number + number, float(table.times_s[number]), made)
        for number, made in zip(numbers.tolist(), pixels)
    ]


def look_at(video: OpenVideo, sampler: FrameSampler, clip: Clip | None) -> VideoTable:
    """Return what a sampler asks to see of a video: its frames, and how much they change."""
    table = probe_video(video)
    if clip is not None:
        table = table.within(*clip)
    if getattr(sampler, "needs_changes", False):
        table = replace(table, changes=measure_changes(video, table))
    return table


def decode_each(
    video: OpenVideo, table: VideoTable, numbers: FrameNumbers, make: Callable[[Any], Made]
) -> list[Made]:
    """Return what `make` makes of each frame, in the order of the numbers; repeats are shared."""
    with broken_as("broken video"):
        made = {number: make(frame) for number, frame in decode_frames(video, table, numbers)}
    return [made[number] for number in numbers.tolist()]
