from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_video import numbered_clip, read_number
from video_tables import steady_table

from shardmill.errors import ConfigError, SampleError, ShardmillError
from shardmill.media.video.frames import read_frames
from shardmill.media.video.samplers import AllFrames, Fps, FrameSampler, Uniform, WholeVideo
from shardmill.model.codec import build, from_plain, to_plain
from shardmill.model.frames import qwen2_frames, qwen3_frames
from shardmill.plugins import FRAME_SAMPLERS

FIELDS: dict[str, dict[str, Any]] = {"frames": {"numbers": [0]}}


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
    st.integers(1, 400), st.integers(1, 60), st.floats(0.1, 8), st.sampled_from(["qwen2", "qwen3"])
)
def test_fps_is_the_rule_of_the_planner(num: int, fps: int, wanted: float, rule: str) -> None:
    video = steady_table(num, fps=fps)
    function = {"qwen2": qwen2_frames, "qwen3": qwen3_frames}[rule]

    def numbers_or_reason(choose: Any) -> object:
        try:
            return choose().tolist()
        except ShardmillError as error:
            return type(error), str(error)

    sampler = Fps(fps=wanted, rule=rule, max_frames=64)  # type: ignore[arg-type]
    found = numbers_or_reason(lambda: video.numbers_at(sampler.times(video)))
    expected = numbers_or_reason(lambda: function(num, video.fps, fps=wanted, max_frames=64))
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
        {"kind": "fps", "rule": "other"},
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
