from __future__ import annotations

from typing import Any

import pytest
from numbered_video import numbered_clip, read_number
from video_tables import steady_table

from shardmill.errors import ConfigError, SampleError
from shardmill.media.video.frames import read_frames
from shardmill.media.video.samplers import Explicit


def shown(sampler: Explicit) -> list[int]:
    return [read_number(frame.pixels) for frame in read_frames(numbered_clip(), sampler)]


def test_frames_come_in_the_order_given_even_twice() -> None:
    assert shown(Explicit(numbers=(59, 3, 10, 3, -1, -60))) == [59, 3, 10, 3, 59, 0]


def test_times_mean_the_frame_that_is_shown() -> None:
    assert shown(Explicit(times_s=(0.0, 0.04, 0.41, 2.36, 2.39))) == [0, 1, 10, 59, 59]


def test_a_row_may_tell() -> None:
    sampler = Explicit(field="picked")
    assert sampler.of_row({"picked": [3, 4]}) == Explicit(numbers=(3, 4))
    assert sampler.of_row({"picked": [3, 4.5]}) == Explicit(times_s=(3.0, 4.5))
    assert Explicit(numbers=(1,)).of_row({}) == Explicit(numbers=(1,))


@pytest.mark.parametrize("row", [{}, {"picked": []}, {"picked": 3}])
def test_a_row_that_does_not_tell_is_rejected(row: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match="missing field"):
        Explicit(field="picked").of_row(row)


@pytest.mark.parametrize("value", [["a"], [None], [[1]], [1, "x"]])
def test_a_list_of_something_else_is_rejected(value: list[Any]) -> None:
    with pytest.raises(SampleError, match="bad frame list"):
        Explicit(field="picked").of_row({"picked": value})


@pytest.mark.parametrize("number", [60, -61, 1 << 40])
def test_frames_that_are_not_there_are_rejected(number: int) -> None:
    with pytest.raises(SampleError, match="frame outside the video"):
        Explicit(numbers=(0, number)).times(steady_table(60))


@pytest.mark.parametrize(
    "fields", [{}, {"numbers": (1,), "field": "x"}, {"numbers": (1,), "times_s": (1.0,)}]
)
def test_one_way_of_choosing_is_needed(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Explicit(**fields)
