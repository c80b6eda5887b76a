"""Frames that somebody chose already: by number, by time, or in a field of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardmill.errors import ConfigError, SampleError
from shardmill.media.videotable import Seconds, VideoTable


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
