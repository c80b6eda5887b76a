"""The frames of a video as numbers: when each is shown, and where its decoding must begin.

A row is a frame, in the order they are shown. Seconds count from the container's start, as players
count them, so that they agree with captions; a stream whose timestamps begin below zero or at ten
hours begins at 0 all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.model.frames import FrameNumbers

Seconds = NDArray[np.float64]
SLACK_S, SLACK_SHARE = 1.0, 0.1
# Times that people write, such as 1.2 s, mean the frame at 1.2000000000000002 s too.
ROUNDING_S = 1e-6
PER_FRAME = ("times_s", "pts", "place", "start_pts", "start_place", "is_key", "is_forward")


@dataclass(frozen=True, kw_only=True)
class VideoTable:
    """What demuxing tells of each frame; nothing here was decoded, except for `changes`.

    `place` is the number of a frame's packet, in the order of decoding; `start_place` and
    `start_pts` are those of the key frame from which on packets must be decoded to get it.
    `is_forward` frames are shown after all that was decoded before them: key frames and those that
    are predicted from the past (P); the others (B) also look ahead. `first_number` is the number
    of the first frame in the whole video, of which this may be a clip. In a video that `is_counted`
    only the order of the frames is known, not their timestamps. `changes` says how much each frame
    differs from the one before, from 0 to 1, if somebody measured it.
    """

    times_s: Seconds
    end_s: float
    pts: NDArray[np.int64]
    place: NDArray[np.int64]
    start_pts: NDArray[np.int64]
    start_place: NDArray[np.int64]
    is_key: NDArray[np.bool_]
    is_forward: NDArray[np.bool_]
    first_number: int = 0
    is_counted: bool = False
    changes: Seconds | None = None

    def __len__(self) -> int:
        return len(self.times_s)

    @cached_property
    def duration_s(self) -> float:
        """How long the frames are shown, the last one included."""
        return self.end_s - float(self.times_s[0])

    @cached_property
    def fps(self) -> float:
        """Frames a second on average, 0 if they have no duration."""
        return len(self) / self.duration_s if self.duration_s > 0 else 0.0

    def numbers_at(self, times_s: Sequence[float] | Seconds) -> FrameNumbers:
        """Return the numbers of the frames that are shown at these times."""
        wanted = np.asarray(times_s, np.float64)
        first, last = float(self.times_s[0]), self.end_s
        outside = wanted[~((wanted >= first - ROUNDING_S) & (wanted <= last + ROUNDING_S))]
        if len(outside):
            detail = f"{outside[0]:g} s, it is shown from {first:g} to {last:g} s"
            raise SampleError("time outside the video", detail)
        return np.maximum(np.searchsorted(self.times_s, wanted + ROUNDING_S, "right") - 1, 0)

    def within(self, start_s: float, end_s: float) -> VideoTable:
        """Return the frames of a clip [start, end).

        Rows round their times, so that a clip may end a little after the video; one that begins
        after it, or ends long after it, was cut from another video.
        """
        slack = max(SLACK_S, SLACK_SHARE * (end_s - start_s))
        begins_inside = 0 <= start_s < min(end_s, self.end_s - ROUNDING_S)
        if not (begins_inside and end_s <= self.end_s + slack):
            detail = f"{start_s:g} to {end_s:g} s, it ends at {self.end_s:g} s"
            raise SampleError("clip outside the video", detail)
        # A clip that begins while a frame is shown begins with that frame.
        begin = int(self.numbers_at([max(start_s, float(self.times_s[0]))])[0])
        end = max(begin + 1, int(np.searchsorted(self.times_s, end_s - ROUNDING_S)))
        cut: dict[str, Any] = {name: getattr(self, name)[begin:end] for name in PER_FRAME}
        if self.changes is not None:
            cut["changes"] = self.changes[begin:end]
        shown_until = self.end_s if end == len(self) else float(self.times_s[end])
        cut["first_number"] = self.first_number + begin
        return replace(self, **cut, end_s=min(shown_until, end_s))

    def type_of(self, number: int) -> str:
        """Return "I" for a key frame, "P" if it looks only back, "B" if it looks ahead too."""
        if self.is_key[number]:
            return "I"
        return "P" if self.is_forward[number] else "B"

    def positions(self, scale: int) -> NDArray[np.int64]:
        """Return the times on a scale from 0, the first frame, to `scale`, the last."""
        since = self.times_s - self.times_s[0]
        places: NDArray[np.float64] = np.rint(scale * since / max(float(since[-1]), 1e-9))
        return places.astype(np.int64)


def make_table(
    pts: NDArray[np.int64],
    is_key: NDArray[np.bool_],
    is_shown: NDArray[np.bool_],
    *,
    time_base: float,
    origin_s: float,
    last_duration_s: float,
) -> VideoTable:
    """Return the table of packets that are given in the order of decoding.

    Packets that are not shown must be decoded, but are no frames; frames that no key frame comes
    before cannot be decoded and are none either.
    """
    starts = _start_of(pts, is_key)
    shown = np.flatnonzero(is_shown & (starts >= 0))
    shown = shown[np.argsort(pts[shown], kind="stable")]
    if len(shown) == 0:
        raise SampleError("no frames", f"{len(pts)} packets, {int(is_key.sum())} key frames")
    if (np.diff(pts[shown]) <= 0).any():
        raise SampleError("broken timestamps", "two frames are shown at the same time")
    times_s: Seconds = pts[shown] * np.float64(time_base) - origin_s
    start = starts[shown]
    return VideoTable(
        times_s=times_s,
        end_s=float(times_s[-1]) + last_duration_s,
        pts=pts[shown],
        place=shown,
        start_pts=pts[start],
        start_place=start,
        is_key=is_key[shown],
        is_forward=(pts == np.maximum.accumulate(pts))[shown],
    )


def _start_of(pts: NDArray[np.int64], is_key: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the packet from which on each packet can be decoded, -1 if there is none.

    It is the last key frame before it, unless that one is shown later: frames that were sent after
    a key frame to be shown before it look back across it, to the group before.
    """
    keys = np.flatnonzero(is_key)
    which = np.searchsorted(keys, np.arange(len(pts)), "right") - 1
    if len(keys) == 0:
        return which
    for _ in range(len(keys)):
        leads = (which >= 0) & (pts[keys[which]] > pts)
        if not leads.any():
            break
        which[leads] -= 1
    return np.where(which >= 0, keys[which], -1)
