from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists

from shardmill.errors import StaleError
from shardmill.model.plan import PackSpec, length_table
from shardmill.packing.plan import plan_packs
from shardmill.view.context import Context
from shardmill.view.plots import (
    MAX_SOURCES,
    histogram,
    length_plots,
    pack_plots,
    price_plan,
    some_lengths,
    step_plots,
)


@given(values=lists(integers(0, 5000)), num_groups=integers(1, 12))
def test_a_histogram_counts_each_value_once(values: list[int], num_groups: int) -> None:
    found = np.array(values, np.int32)
    group = np.arange(len(found)) % num_groups
    drawn = histogram(found, group, tuple(f"g{n}" for n in range(num_groups)))
    assert sum(sum(series["counts"]) for series in drawn["series"]) == len(values)
    assert len(drawn["series"]) <= MAX_SOURCES + 1
    assert all(len(s["counts"]) == len(drawn["edges"]) - 1 for s in drawn["series"])


@given(values=lists(integers(0, 40), min_size=1))
def test_few_whole_numbers_have_a_bar_each(values: list[int]) -> None:
    drawn = histogram(np.array(values, np.int64))
    (series,) = drawn["series"]
    assert drawn["whole"]
    assert series["counts"] == np.bincount(values).tolist()


def test_a_plan_waits_less_than_a_shuffle() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 500, 4000)
    table = length_table(lengths, num_visual=(lengths * rng.random(4000)).astype(np.int32))
    plan = plan_packs(table, PackSpec(capacity=1024), loops="plain")
    priced = price_plan(plan, table)
    assert sum(pack_plots(priced, table)["fill"]["series"][0]["counts"]) == len(plan)
    drawn = step_plots(priced, 16)
    assert drawn["world"] == 16
    for cost in drawn["stragglers"]:
        assert 1 <= cost["planned"] < cost["shuffled"]
    assert drawn["steps"]["num_steps"] == len(plan) // 16
    steps = drawn["steps"]["planned"]
    assert all(most >= mean for most, mean in zip(steps["max"], steps["mean"]))
    with pytest.raises(StaleError):
        price_plan(plan, length_table(lengths))


def test_more_ranks_than_packs_are_as_many_as_there_are(context: Context) -> None:
    plan, table = context.plan("packs.plan"), context.lengths("tokens")
    drawn = step_plots(price_plan(plan, table), 512)
    assert (drawn["world"], drawn["steps"]["num_steps"]) == (3, 1)


def test_lengths_are_drawn_by_source(context: Context) -> None:
    table, num_shards = some_lengths(context.folder("tokens"))
    drawn = length_plots(table)
    assert num_shards == 1
    assert drawn["lengths"]["count"] == 18
    assert drawn["lengths"]["series"][0]["name"] == "chats"
    assert drawn["visual"]["max"] == 512
