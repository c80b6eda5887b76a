"""Endless packing: each sample once, full packs from a small window, exact resume."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_lengths import draw

from shardmill.errors import ConfigError, SampleError
from shardmill.packing.stream import StreamPlanner


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(10, 60), max_size=60),
    window=st.integers(20, 30),
    alignment=st.integers(1, 8),
    max_documents=st.none() | st.integers(1, 4),
)
def test_each_sample_is_in_one_pack_that_fits(
    lengths: list[int], window: int, alignment: int, max_documents: int | None
) -> None:
    planner = StreamPlanner(100, window=window, alignment=alignment, max_documents=max_documents)
    packs = list(planner.packs(enumerate(lengths)))
    assert sorted(number for pack in packs for number in pack) == list(range(len(lengths)))
    for pack in packs:
        assert sum(-(-lengths[number] // alignment) * alignment for number in pack) <= 100
        assert len(pack) <= (max_documents or 100)


@pytest.mark.parametrize("capacity", [4096, 8192, 32768])
def test_window_of_128_fills_packs_to_four_nines(capacity: int) -> None:
    lengths = draw("vlm", capacity, 30_000)[0].tolist()
    planner = StreamPlanner(capacity, window=128)
    packs = [pack for item in enumerate(lengths) if (pack := planner.add(*item))]
    filled = sum(lengths[number] for pack in packs for number in pack)
    assert filled / (capacity * len(packs)) >= 0.9999


@given(lengths=st.lists(st.integers(10, 60), min_size=25, max_size=60), stop=st.integers(0, 59))
@settings(deadline=None)
def test_resumed_stream_gives_the_packs_of_an_unbroken_one(lengths: list[int], stop: int) -> None:
    whole = list(StreamPlanner(100, window=20).packs(enumerate(lengths)))
    first = StreamPlanner(100, window=20)
    items = list(enumerate(lengths))
    packs = [pack for item in items[:stop] if (pack := first.add(*item))]
    second = StreamPlanner(100, window=20)
    state = json.loads(json.dumps(first.state()))
    assert (state["num_seen"], state["units_seen"]) == (len(items[:stop]), sum(lengths[:stop]))
    second.restore(state)
    assert packs + list(second.packs(items[stop:])) == whole


def test_no_sample_waits_longer_than_a_few_windows() -> None:
    planner = StreamPlanner(8192, window=64)
    for number, length in enumerate(draw("vlm", 8192, 20_000)[0].tolist()):
        pack = planner.add(number, length)
        if pack:
            assert number - min(pack) < 4 * 64


def test_window_smaller_than_a_pack_says_so() -> None:
    planner = StreamPlanner(1000, window=4)
    with pytest.raises(ConfigError, match="4 samples holds 40 tokens, less than one pack of 1000"):
        list(planner.packs((number, 10) for number in range(9)))


@pytest.mark.parametrize(("length", "reason"), [(0, "no tokens"), (-2, "no tokens"), (9, "longer")])
def test_sample_that_fits_nowhere_leaves_the_state_alone(length: int, reason: str) -> None:
    planner = StreamPlanner(8)
    before = planner.state()
    with pytest.raises(SampleError, match=reason):
        planner.add(1, length)
    assert planner.state() == before


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="alignment"):
        StreamPlanner(8, alignment=9)
    with pytest.raises(ConfigError, match="window"):
        StreamPlanner(8, window=0)
    with pytest.raises(ConfigError, match="state holds 2"):
        StreamPlanner(8, window=1).restore({"numbers": [1, 2], "units": [1, 2]})
