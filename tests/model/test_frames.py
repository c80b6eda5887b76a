from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.model.frames import (
    spread_at_fps,
    spread_frames,
    stride_at_fps,
    stride_frames,
)


@given(num_frames=st.integers(1, 100_000), count=st.integers(1, 2000), middle=st.booleans())
def test_strides_are_as_many_as_asked_and_never_leave_the_video(
    num_frames: int, count: int, middle: bool
) -> None:
    if count > num_frames:
        with pytest.raises(SampleError, match="too few frames"):
            stride_frames(num_frames, count, middle=middle)
        return
    frames = stride_frames(num_frames, count, middle=middle)
    assert len(frames) == count
    assert np.all(np.diff(frames) > 0)
    assert frames[0] >= 0
    assert frames[-1] < num_frames


def test_strides_by_hand() -> None:
    assert stride_frames(9, 2).tolist() == [0, 4]
    assert stride_frames(9, 2, middle=True).tolist() == [2, 6]
    assert stride_frames(774, 767)[-1] == 772  # in floating point there would be a frame 774


@given(num_frames=st.integers(1, 100_000), count=st.integers(2, 2000))
def test_spread_frames_reach_both_ends(num_frames: int, count: int) -> None:
    frames = spread_frames(num_frames, count)
    assert len(frames) == count
    assert (frames[0], frames[-1]) == (0, num_frames - 1)


@given(
    num_frames=st.integers(2, 100_000),
    video_fps=st.floats(0.5, 240),
    fps=st.floats(0.1, 60),
    max_frames=st.integers(4, 768),
)
def test_rates_keep_to_their_limits(
    num_frames: int, video_fps: float, fps: float, max_frames: int
) -> None:
    two = stride_at_fps(num_frames, video_fps, fps=fps, max_frames=max_frames, multiple_of=2)
    three = spread_at_fps(num_frames, video_fps, fps=fps, max_frames=max_frames)
    assert len(two) % 2 == 0
    for frames in (two, three):
        assert min(4, num_frames - 1) <= len(frames) <= min(max_frames, num_frames)
        assert frames[-1] < num_frames


@pytest.mark.parametrize("num_frames", [0, -3, 1 << 40])
def test_videos_without_a_sane_number_of_frames_are_rejected(num_frames: int) -> None:
    with pytest.raises(SampleError, match="number of frames"):
        spread_frames(num_frames, 4)


def test_an_unknown_rate_is_rejected() -> None:
    with pytest.raises(SampleError, match="unknown frame rate"):
        spread_at_fps(10, 0.0, fps=2.0)
