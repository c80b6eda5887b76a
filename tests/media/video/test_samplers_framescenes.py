from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from video_tables import steady_table

from shardmill.errors import ConfigError
from shardmill.media.video.samplers import Scenes


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


def test_settings_are_checked() -> None:
    for fields in ({"threshold": 0}, {"threshold": 2}, {"min_scene_s": -1}, {"max_frames": 0}):
        with pytest.raises(ConfigError):
            Scenes(**fields)  # type: ignore[arg-type]
