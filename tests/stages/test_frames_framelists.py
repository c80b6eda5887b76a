from __future__ import annotations

import pytest

from shardmill.errors import SampleError
from shardmill.model.sample import Segment
from shardmill.stages.frames import find_lists, list_table


def image(number: int, **fields: object) -> Segment:
    return Segment(kind="image", media=f"{number}.jpg", **fields)  # type: ignore[arg-type]


def test_images_that_follow_each_other_in_one_turn_are_a_list() -> None:
    text = Segment(kind="text", text="x")
    segments = [image(0), image(1), image(2), text, image(3), text]
    segments += [image(4, turn=1), image(5, turn=1), image(6, turn=2)]
    assert list(find_lists(segments)) == [range(3), range(6, 8)]
    assert list(find_lists([])) == []


def test_frames_are_shown_at_a_rate_or_at_their_own_times() -> None:
    table = list_table([image(n) for n in range(4)], 2.0)
    assert table.times_s.tolist() == [0, 0.5, 1, 1.5]
    assert (table.end_s, table.is_key.all()) == (2.0, True)
    table = list_table([image(n, time_s=(n * n + 0.5, 99.0)) for n in range(4)], 2.0)
    assert table.times_s.tolist() == [0.5, 1.5, 4.5, 9.5]


def test_times_that_go_back_are_rejected() -> None:
    with pytest.raises(SampleError, match="broken timestamps"):
        list_table([image(n, time_s=(5.0 - n, 9.0)) for n in range(3)], 2.0)
