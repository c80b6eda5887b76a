from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import RowSegment
from shardmill.sources.shapes.video import clip_in, clip_of, in_clip, seconds_of


@given(st.integers(0, 10**9))
def test_a_clock_and_its_seconds_are_the_same_time(milliseconds: int) -> None:
    seconds, rest = divmod(milliseconds, 1000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:03d}"
    assert seconds_of(clock) == pytest.approx(milliseconds / 1000)
    assert seconds_of(milliseconds / 1000) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    "value", ["", "soon", None, True, [], "1:x", -1, "-3", "inf", float("nan")]
)
def test_what_is_no_time_is_a_reject(value: Any) -> None:
    with pytest.raises(SampleError, match="bad time"):
        seconds_of(value)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, None),
        ({"clip": None, "start": 1}, None),
        ({"clip": [1, "00:02.5"]}, (1.0, 2.5)),
        ({"start": 0, "end": 3}, (0.0, 3.0)),
    ],
)
def test_a_row_names_its_clip(row: dict[str, Any], expected: Any) -> None:
    assert clip_in(row, "clip", "start", "end") == expected


@pytest.mark.parametrize("row", [{"clip": 3}, {"clip": [1]}, {"clip": [2, 2]}, {"clip": [5, 1]}])
def test_a_clip_that_cannot_be_is_a_reject(row: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match="bad clip"):
        clip_in(row, "clip", "start", "end")


def test_only_videos_get_the_clip() -> None:
    video, text = RowSegment(kind="video", media="a.mp4"), RowSegment(kind="text", text="x")
    clipped = in_clip([video, text], clip_of(1, 2))
    assert [segment.time_s for segment in clipped] == [(1.0, 2.0), None]
    assert in_clip([video], None) == [video]
