"""Which frames are taken: each sampler is a pure function from a video's table to times.

A row of a `VideoTable` is a frame, in the order they are shown: when, and where its decoding must
begin. Seconds count from the container's start, as players count them, so that they agree with
captions; a stream whose timestamps begin below zero or at ten hours begins at 0 all the same.

A sampler sees the table of the whole video or of the clip that is meant, and returns seconds; the
frame that is shown at a time is the one that is taken. Frames are
chosen by time (`Uniform`, `Fps`), by how they are coded (`Keyframes`, `NearestKeyframes`), by what
they show (`Scenes`), or were chosen already (`Explicit`). A class attribute `needs_changes` asks
for the changes of all frames, `needs_types` for how they are coded, which takes decoding;
`of_row(fields)` makes a sampler for one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.model.frames import (
    FrameNumbers,
    spread_at_fps,
    spread_frames,
    stride_at_fps,
    stride_frames,
)

Seconds = NDArray[np.float64]
By = Literal["time", "number"]
# A clip may end this much after its video: a second, or a tenth of the clip.
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
    differs from the one before, from 0 to 1, if somebody measured it. `corrected` says what was
    wrong with the times in the file, if anything was.
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
    corrected: tuple[str, ...] = ()

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

    def positions(self, scale: int, by: By = "time") -> NDArray[np.int64]:
        """Return the times on a scale from 0, the first frame, to `scale`, the last.

        By time they are rounded; by number every frame counts alike, and the rest is cut off.
        """
        if by == "number":
            return (np.arange(len(self)) / max(len(self) - 1, 1) * scale).astype(np.int64)
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
    num_lost = int(np.count_nonzero(is_shown)) - len(shown)
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
        corrected=(f"begins without a key frame: {num_lost} frames left out",) if num_lost else (),
    )


def number_frames(
    times_s: Seconds,
    *,
    last_duration_s: float,
    is_key: NDArray[np.bool_],
    is_forward: NDArray[np.bool_],
    corrected: tuple[str, ...] = (),
) -> VideoTable:
    """Return the table of frames that are decoded from the first on and known by their number."""
    numbers = np.arange(len(times_s))
    return VideoTable(
        times_s=times_s,
        end_s=float(times_s[-1]) + last_duration_s,
        pts=numbers,
        place=numbers,
        start_pts=np.zeros_like(numbers),
        start_place=np.zeros_like(numbers),
        is_key=is_key,
        is_forward=is_forward,
        is_counted=True,
        corrected=corrected,
    )


def _start_of(pts: NDArray[np.int64], is_key: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the packet from which on each packet can be decoded, -1 if there is none.

    It is the last key frame before it, unless that one is shown later: frames that were sent after
    a key frame to be shown before it look back across it, to the group before. Of packets shown at
    0 3 1 2 | 6 4 5 7 with key frames at 0 and 6, those shown at 4 and 5 start at 0.
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
    """Every frame as an image; for short clips, and for lists of frames taken by others."""

    def times(self, video: VideoTable) -> Seconds:
        return video.times_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """The frames in the middle of `count` equal segments of time.

    By number, segments are equal in frames whenever they are shown: of N frames, (N - 1) / `count`
    each, whose start is rounded and whose middle is cut off. A video of fewer frames is rejected,
    unless it may `repeat` them; where one frame stands still for long it is taken again.
    """

    count: int = 16
    by: By = "time"
    repeat: bool = False

    def __post_init__(self) -> None:
        check_count("count", self.count)

    def times(self, video: VideoTable) -> Seconds:
        if len(video) < self.count and not self.repeat:
            detail = (
                f"{len(video)}, {self.count} are wanted: say uniform,repeat=true to repeat some"
            )
            raise SampleError("too few frames", detail)
        if self.by == "time":
            return middles_s(video, self.count)
        segment = (len(video) - 1) / self.count
        starts = np.round(segment * np.arange(self.count))
        return video.times_s[(segment / 2 + starts).astype(np.int64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fps:
    """`fps` frames a second, within limits.

    `method` is "stride" (equal steps from the first frame on, down to whole patches of
    `temporal_patch` frames) or "spread" (from the first frame to the last). The sampler "model"
    takes what the processor of a model would.
    """

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    temporal_patch: int = 2
    method: Literal["stride", "spread"] = "stride"

    def __post_init__(self) -> None:
        if not self.fps > 0:
            raise ConfigError(f"fps must be positive, got {self.fps}")
        for name in ("min_frames", "max_frames", "temporal_patch"):
            check_count(name, getattr(self, name))
        if self.min_frames > self.max_frames:
            raise ConfigError(f"min_frames {self.min_frames} is over max_frames {self.max_frames}")

    def times(self, video: VideoTable) -> Seconds:
        limits = {"fps": self.fps, "min_frames": self.min_frames, "max_frames": self.max_frames}
        if self.method == "spread":
            numbers = spread_at_fps(len(video), video.fps, **limits)  # type: ignore[arg-type]
        else:
            numbers = stride_at_fps(
                len(video),
                video.fps,
                multiple_of=self.temporal_patch,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyframes:
    """`i_frames` key frames and `p_frames` other frames, merged in the order of time.

    The last frame of the video counts as a key frame, whatever it is, so that the end is seen. Key
    frames are spread from the first to the last; the others, P or B, are the middle ones of equal
    pieces, and make up for key frames that are missing. With the spacing "step" both are taken in
    steps of a whole number from their first on, so that the end may not be reached. `types` of the
    "container" are its key frames; by the "decoder" every frame coded as I counts as one.
    """

    i_frames: int = 8
    p_frames: int = 16
    spacing: Literal["even", "step"] = "even"
    types: Literal["container", "decoder"] = "container"

    def __post_init__(self) -> None:
        check_count("i_frames", self.i_frames)
        if self.p_frames < 0:
            raise ConfigError(f"p_frames must be 0 or more, got {self.p_frames}")

    @property
    def needs_types(self) -> bool:
        """Whether all frames must be decoded to learn how they are coded."""
        return self.types == "decoder"

    def times(self, video: VideoTable) -> Seconds:
        is_i, last = video.is_key.copy(), len(video) - 1
        is_i[last] = True
        spread, middle = (_stepped, _stepped) if self.spacing == "step" else (_spread, _middle)
        i_frames = spread(np.flatnonzero(is_i), self.i_frames)
        total = self.i_frames + self.p_frames if self.p_frames else len(i_frames)
        p_frames = middle(np.flatnonzero(~is_i), total - len(i_frames))
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


def _stepped(numbers: FrameNumbers, count: int) -> FrameNumbers:
    """Return every so-manieth number: 8 of 20 are 0, 2, .. 14, since 19 / 7 is cut to 2."""
    if len(numbers) <= count or count <= 1:
        return numbers[: max(count, 0)]
    return numbers[:: (len(numbers) - 1) // (count - 1)][:count]


def _middle(numbers: FrameNumbers, count: int) -> FrameNumbers:
    if len(numbers) <= count or count <= 0:
        return numbers[: max(count, 0)]
    return numbers[stride_frames(len(numbers), count, middle=True)]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Explicit:
    """The frames with these numbers, or those shown at these times, in the order given.

    Negative numbers count from the end. `field` names the field of a row that holds the list for
    its own video: whole numbers are frames, others are seconds.
    """

    numbers: tuple[int, ...] = ()
    times_s: tuple[float, ...] = ()
    field: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.numbers, self.times_s, self.field))) != 1:
            raise ConfigError("frames need exactly one of numbers, times_s and field")

    def of_row(self, fields: Mapping[str, Any]) -> Explicit:
        """Return the sampler for the video of one row."""
        if not self.field:
            return self
        listed = fields.get(self.field)
        if not isinstance(listed, list) or not listed:
            raise SampleError("missing field", f"the row has no list {self.field!r}")
        try:
            return _explicit(listed)
        except (TypeError, ValueError, OverflowError) as error:
            raise SampleError("bad frame list", f"{self.field}: {error}") from error

    def times(self, video: VideoTable) -> Sequence[float] | Seconds:
        if self.times_s:
            return self.times_s
        numbers = [n + len(video) if n < 0 else n for n in self.numbers]
        outside = [n for n in numbers if not 0 <= n < len(video)]
        if outside:
            raise SampleError("frame outside the video", f"{outside[0]} of {len(video)} frames")
        return video.times_s[numbers]


def _explicit(listed: list[Any]) -> Explicit:
    if all(isinstance(item, int) and not isinstance(item, bool) for item in listed):
        return Explicit(numbers=tuple(listed))
    return Explicit(times_s=tuple(float(item) for item in listed))
