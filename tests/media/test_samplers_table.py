from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.media.samplers import VideoTable, make_table


def table_of(pts: list[int], keys: set[int], hidden: frozenset[int] = frozenset()) -> VideoTable:
    places = range(len(pts))
    return make_table(
        np.array(pts),
        np.array([place in keys for place in places]),
        np.array([place not in hidden for place in places]),
        time_base=0.1,
        origin_s=0.0,
        last_duration_s=0.1,
    )


def steady(count: int, group: int = 10) -> VideoTable:
    return table_of(list(range(count)), set(range(0, count, group)))


def test_frames_are_rows_in_the_order_in_which_they_are_shown() -> None:
    # I0 P3 B1 B2 | I6 B4 B5 P7: the B frames before I6 look back across it, to I0.
    table = table_of([0, 3, 1, 2, 6, 4, 5, 7], {0, 4})
    assert table.pts.tolist() == list(range(8))
    assert table.place.tolist() == [0, 2, 3, 1, 5, 6, 4, 7]
    assert table.start_place.tolist() == [0, 0, 0, 0, 0, 0, 4, 4]
    assert table.start_pts.tolist() == [0, 0, 0, 0, 0, 0, 6, 6]
    assert "".join(table.type_of(number) for number in range(8)) == "IBBPBBIP"
    assert table.times_s.tolist() == pytest.approx([n / 10 for n in range(8)])
    assert (table.end_s, table.fps) == (pytest.approx(0.8), pytest.approx(10))


def test_what_cannot_be_decoded_or_is_hidden_is_no_frame() -> None:
    table = table_of([0, 1, 2, 3, 4], {2}, hidden=frozenset([3]))
    assert (table.pts.tolist(), table.place.tolist()) == ([2, 4], [2, 4])
    for keys in (set(), {0}):
        with pytest.raises(SampleError, match="no frames"):
            table_of([5], keys, hidden=frozenset([0]))


def test_two_frames_at_one_time_are_rejected() -> None:
    with pytest.raises(SampleError, match="broken timestamps"):
        table_of([0, 1, 1], {0})


@given(st.permutations(range(12)), st.sets(st.integers(1, 11)))
def test_decoding_begins_at_a_key_frame_that_is_shown_before(
    pts: list[int], keys: set[int]
) -> None:
    table = table_of(pts, keys | {0})
    for number in range(len(table)):
        start, place = table.start_place[number], table.place[number]
        assert start in keys | {0}
        assert start <= place
        assert table.start_pts[number] == pts[start] <= table.pts[number]
        between = [k for k in keys if start < k <= place]
        assert all(pts[key] > table.pts[number] for key in between)


@given(st.integers(0, 299), st.integers(1, 300))
def test_a_clip_holds_what_is_shown_in_it(start: int, length: int) -> None:
    # In hundredths of a second; frame n is shown from 10 n to 10 n + 10.
    end = min(start + length, 300)
    clip = steady(30).within(start / 100, end / 100)
    shown = [n for n in range(30) if 10 * n < end and 10 * n + 10 > start]
    assert clip.pts.tolist() == shown
    assert clip.first_number == shown[0]
    assert clip.start_pts.tolist() == [n // 10 * 10 for n in shown]
    assert clip.end_s == pytest.approx(end / 100)


@pytest.mark.parametrize(
    "clip", [(3.0, 4.0), (-0.5, 1.0), (2.0, 1.0), (1.0, 1.0), (1.0, 9.0), (float("nan"), 1.0)]
)
def test_a_clip_outside_of_the_video_is_rejected(clip: tuple[float, float]) -> None:
    with pytest.raises(SampleError, match="clip outside the video"):
        steady(30).within(*clip)


def test_a_clip_may_end_a_little_late() -> None:
    assert len(steady(30).within(2.0, 3.4)) == 10


def test_the_frame_at_a_time_is_the_one_that_is_shown() -> None:
    table = steady(30)
    assert table.numbers_at([0, 0.05, 0.1, 1.99, 2.95, 3.0]).tolist() == [0, 0, 1, 19, 29, 29]
    assert table.numbers_at(table.times_s).tolist() == list(range(30))
    for time in (-0.01, 3.1, float("nan")):
        with pytest.raises(SampleError, match="time outside the video"):
            table.numbers_at([time])


@given(st.integers(1, 400), st.sampled_from([1, 10, 1000]))
def test_the_scale_begins_at_the_first_frame_and_ends_at_the_last(count: int, scale: int) -> None:
    at = steady(count).positions(scale)
    assert at[0] == 0
    assert count == 1 or at[-1] == scale
    assert at.tolist() == sorted(at.tolist())
    assert at.tolist() == pytest.approx(
        [scale * n / max(1, count - 1) for n in range(count)], abs=0.5
    )
