from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_video import numbered_clip, read_number
from video_tables import steady_table

from shardmill.errors import ConfigError, SampleError, ShardmillError
from shardmill.media.frames import read_frames
from shardmill.media.samplers import (
    AllFrames,
    Explicit,
    Fps,
    FrameSampler,
    Keyframes,
    NearestKeyframes,
    Scenes,
    Uniform,
    WholeVideo,
)
from shardmill.model.codec import build, from_plain, to_plain
from shardmill.model.frames import spread_at_fps, stride_at_fps
from shardmill.plugins import FRAME_SAMPLERS

FIELDS: dict[str, dict[str, Any]] = {
    "frames": {"numbers": [0]},
    "model": {"rule": {"kind": "visual/qwen3-vl"}},
}

METHODS = {"stride": partial(stride_at_fps, multiple_of=2), "spread": spread_at_fps}


@given(st.integers(1, 500), st.integers(1, 64), st.integers(1, 60))
def test_uniform_frames_are_in_the_middles_of_segments(num: int, count: int, fps: int) -> None:
    video = steady_table(num, fps=fps)
    if num < count:
        with pytest.raises(SampleError, match="too few frames"):
            Uniform(count=count).times(video)
        return
    numbers = video.numbers_at(Uniform(count=count).times(video)).tolist()
    # The middle of segment i is (2 i + 1) / (2 count) of all; on a border either side will do.
    exact = [(2 * i + 1) * num / (2 * count) for i in range(count)]
    assert all(n <= middle + 1e-6 and middle <= n + 1 + 1e-6 for n, middle in zip(numbers, exact))
    assert numbers == sorted(set(numbers))


def test_uniform_means_time_where_the_rate_varies() -> None:
    # Ten frames in the first second, then one that stands for nine.
    video = numbered_clip(12, times=(*range(0, 1000, 100), 1000, 10000))
    frames = read_frames(video, Uniform(count=10))
    assert [read_number(frame.pixels) for frame in frames] == [5] + [10] * 9


@given(
    st.integers(1, 400),
    st.integers(1, 60),
    st.floats(0.1, 8),
    st.sampled_from(sorted(METHODS)),
)
def test_fps_is_the_rule_of_the_planner(num: int, fps: int, wanted: float, method: str) -> None:
    video = steady_table(num, fps=fps)
    choose = METHODS[method]

    def numbers_or_reason(find: Any) -> object:
        try:
            return find().tolist()
        except ShardmillError as error:
            return type(error), str(error)

    sampler = Fps(fps=wanted, method=method, max_frames=64)  # type: ignore[arg-type]
    found = numbers_or_reason(lambda: video.numbers_at(sampler.times(video)))
    expected = numbers_or_reason(lambda: choose(num, video.fps, fps=wanted, max_frames=64))
    assert found == expected


def test_temporal_patches_are_whole() -> None:
    for patch in (1, 2, 3, 4):
        times = Fps(fps=1.0, temporal_patch=patch).times(steady_table(115))
        assert len(times) == 11 // patch * patch


def test_whole_and_all_take_every_frame() -> None:
    video = steady_table(23)
    for sampler in (WholeVideo(), AllFrames()):
        assert video.numbers_at(sampler.times(video)).tolist() == list(range(23))


@pytest.mark.parametrize(
    "plain",
    [
        {"kind": "uniform", "count": 0},
        {"kind": "fps", "fps": 0},
        {"kind": "fps", "fps": float("nan")},
        {"kind": "fps", "min_frames": 9, "max_frames": 8},
        {"kind": "fps", "method": "other"},
        {"kind": "unifrom"},
        {"kind": "uniform", "number": 8},
    ],
)
def test_settings_that_cannot_be_are_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build(FRAME_SAMPLERS, plain)


@pytest.mark.parametrize("kind", FRAME_SAMPLERS)
def test_every_sampler_can_be_stored_in_a_spec(kind: str) -> None:
    sampler = build(FRAME_SAMPLERS, {"kind": kind, **FIELDS.get(kind, {})})
    assert from_plain(to_plain(sampler), FrameSampler) == sampler


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


def test_frames_that_look_ahead_count_among_the_others() -> None:
    frames = read_frames(numbered_clip(), Keyframes(i_frames=8, p_frames=16))
    assert len(frames) == 24
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


def picked(changes: dict[int, float], sampler: Scenes) -> list[int]:
    video = steady_table(100)
    measured = np.array([changes.get(number, 0.01) for number in range(100)])
    return video.numbers_at(sampler.times(replace(video, changes=measured))).tolist()


def test_a_scene_begins_where_much_changes() -> None:
    cuts = {20: 0.5, 50: 0.2, 70: 0.09}
    assert picked(cuts, Scenes()) == [0, 20, 50]
    assert picked(cuts, Scenes(threshold=0.05)) == [0, 20, 50, 70]
    assert picked(cuts, Scenes(place="middle")) == [10, 35, 75]
    assert picked({}, Scenes()) == [0]


def test_a_flash_is_no_scene() -> None:
    assert picked({20: 0.5, 22: 0.6, 26: 0.6}, Scenes()) == [0, 20, 26]
    assert picked({2: 0.5}, Scenes()) == [0]
    assert picked({2: 0.5}, Scenes(min_scene_s=0)) == [0, 2]


def test_of_many_scenes_the_strongest_stay() -> None:
    cuts = {10 * n: n / 10 for n in range(1, 10)}
    assert picked(cuts, Scenes(max_frames=4)) == [0, 70, 80, 90]
    assert picked(cuts, Scenes(max_frames=1)) == [0]


def test_settings_of_scenes_are_checked() -> None:
    for fields in ({"threshold": 0}, {"threshold": 2}, {"min_scene_s": -1}, {"max_frames": 0}):
        with pytest.raises(ConfigError):
            Scenes(**fields)  # type: ignore[arg-type]
