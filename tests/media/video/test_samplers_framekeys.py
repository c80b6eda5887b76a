from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_video import numbered_clip, read_number
from video_tables import steady_table

from shardmill.errors import ConfigError, SampleError
from shardmill.media.video.frames import read_frames
from shardmill.media.video.samplers import Keyframes, NearestKeyframes

EVEN = (("bf", "0"), ("sc_threshold", "0"))


def test_key_frames_and_those_between_come_in_the_order_of_time() -> None:
    clip = numbered_clip(200, options=EVEN)  # a key frame every 20
    frames = read_frames(clip, Keyframes(i_frames=4, p_frames=8))
    shown = [read_number(frame.pixels) for frame in frames]
    # Of 0, 20 .. 180 and the last frame, 199, four; of the 189 between, the middles of eight.
    assert [n for n in shown if n % 20 == 0 or n == 199] == [0, 60, 140, 199]
    assert shown == sorted(shown)
    assert len(shown) == 12
    assert shown == [frame.number for frame in frames]


@given(st.integers(1, 300), st.sets(st.integers(1, 299)), st.integers(1, 12), st.integers(0, 20))
def test_budgets_hold_and_the_ends_are_seen(
    num: int, keys: set[int], i_frames: int, p_frames: int
) -> None:
    keys = {0} | {key for key in keys if key < num}
    video = steady_table(num, keys=keys)
    sampler = Keyframes(i_frames=i_frames, p_frames=p_frames)
    numbers = video.numbers_at(sampler.times(video)).tolist()
    assert numbers == sorted(set(numbers))
    is_i = [n for n in numbers if n in keys or n == num - 1]
    assert len(is_i) == min(i_frames, len(keys | {num - 1}))
    total = i_frames + p_frames if p_frames else len(is_i)
    assert len(numbers) == min(total, len(is_i) + num - len(keys | {num - 1}))
    if i_frames > 1:
        assert (numbers[0], numbers[-1]) == (0, num - 1)


def test_frames_that_look_ahead_are_not_taken() -> None:
    frames = read_frames(numbered_clip(), Keyframes(i_frames=4, p_frames=100))
    assert 15 < len(frames) < 45
    assert [read_number(frame.pixels) for frame in frames] == [frame.number for frame in frames]


@given(st.integers(1, 300), st.sets(st.integers(1, 299)), st.integers(1, 20))
def test_the_nearest_key_frames_are_nearest(num: int, keys: set[int], count: int) -> None:
    keys = {0} | {key for key in keys if key < num}
    video = steady_table(num, keys=keys)
    found = video.numbers_at(NearestKeyframes(count=count).times(video)).tolist()
    middles = [(2 * i + 1) * num / (2 * count) for i in range(count)]

    def is_nearest(key: int, middle: float) -> bool:  # of two at one distance either will do
        return abs(key - middle) <= min(abs(other - middle) for other in keys) + 1e-6

    assert all(any(is_nearest(key, middle) for key in found) for middle in middles)
    assert all(any(is_nearest(key, middle) for middle in middles) for key in found)
    assert found == sorted(set(found))


def test_nearest_key_frames_are_read() -> None:
    frames = read_frames(numbered_clip(200, options=EVEN), NearestKeyframes(count=5))
    assert [read_number(frame.pixels) for frame in frames] == [20, 60, 100, 140, 180]


def test_a_clip_without_key_frames_has_no_nearest_one() -> None:
    with pytest.raises(SampleError, match="no key frame"):
        NearestKeyframes().times(steady_table(50).within(1, 2))


def test_settings_are_checked() -> None:
    for fields in ({"i_frames": 0}, {"p_frames": -1}):
        with pytest.raises(ConfigError):
            Keyframes(**fields)
    with pytest.raises(ConfigError):
        NearestKeyframes(count=0)
