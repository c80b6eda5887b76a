"""Prices follow from a model; an order holds each pack once and makes aligned runs alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.model.plan import PackSpec, Prices, length_table
from shardmill.packing.balance import (
    Halving,
    ModelShape,
    PackCosts,
    Shuffled,
    pack_costs,
    sum_by_pack,
)
from shardmill.packing.loops import PLAIN, load_loops
from shardmill.packing.plan import plan_packs


def costs(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(3000, 30_000, count), rng.integers(10**6, 10**9, count)


def straggler(cost: np.ndarray, order: np.ndarray, ranks: int) -> float:
    steps = cost[order][: len(order) // ranks * ranks].reshape(-1, ranks)
    return float((steps.max(axis=1) / steps.mean(axis=1)).mean())


@settings(deadline=None)
@given(count=st.integers(0, 700), block=st.sampled_from([1, 2, 16, 512]), key=st.integers(0, 9))
def test_each_pack_stands_once_and_loops_agree(count: int, block: int, key: int) -> None:
    visual, attention = costs(count, key)
    orders = [
        Halving().order(visual // 3000, attention, block=block, key=key, loops=load_loops(name))
        for name in ("plain", "compiled")
    ]
    assert sorted(orders[0].tolist()) == list(range(count))
    np.testing.assert_array_equal(*orders)


def test_aligned_runs_are_alike_in_both_costs_at_every_size() -> None:
    visual, attention = costs(1 << 15)
    order = Halving().order(visual, attention, block=512, key=1, loops=PLAIN)
    for ranks, limit in ((2, 1.02), (8, 1.05), (64, 1.15)):
        for cost in (visual, attention):
            assert straggler(cost, order, ranks) < limit
            assert straggler(cost, np.arange(1 << 15), ranks) > 1.25


def test_the_larger_spread_decides() -> None:
    # All packs are equal in one cost, so only the other is split.
    same, spread = np.full(1024, 500), np.arange(1024) * 1000 + 10**6
    for visual, attention in ((same, spread), (spread, same)):
        order = Halving().order(visual, attention, block=16, key=1, loops=PLAIN)
        runs = np.sort((visual + attention)[order].reshape(-1, 16), axis=1)
        assert np.all(runs[:, -1] - runs[:, 0] == 15_000)


def test_what_fills_no_block_is_a_fair_sample() -> None:
    visual, attention = costs(512 * 20 + 300)
    order = Halving().order(visual, attention, block=512, key=1, loops=PLAIN)
    assert abs(visual[order[-300:]].mean() / visual.mean() - 1) < 0.02


def test_shuffled_packs_are_not_alike() -> None:
    visual, attention = costs(1 << 12)
    order = Shuffled().order(visual, attention, block=512, key=1, loops=PLAIN)
    assert sorted(order.tolist()) == list(range(1 << 12))
    assert straggler(visual, order, 8) > 1.25


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_price_that_cannot_be(bad: float) -> None:
    with pytest.raises(ConfigError, match="price of visual"):
        Prices(token=1, visual=bad, attention=1)


def test_negative_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match="layers"):
        ModelShape(layers=-1)


def test_prices_of_a_seven_billion_model_are_of_its_size() -> None:
    prices = ModelShape().prices()
    assert prices.token == pytest.approx(6 * 7e9, rel=0.1)
    assert prices.attention == 6 * 28 * 3584
    assert prices.visual == pytest.approx(6 * 0.675e9 * 4, rel=0.1)


def test_price_of_a_pack() -> None:
    costs = PackCosts(np.array([10]), np.array([4]), np.array([52]))
    assert costs.priced(Prices(token=1, visual=10, attention=0.5, pack=2)).tolist() == [78.0]


def test_sums_by_pack() -> None:
    members, starts = np.array([3, 0, 1], np.uint32), np.array([0, 2, 3])
    values = np.array([2**31 - 1, 5, 7, 2**31 - 1], np.int32)
    assert sum_by_pack(lambda rows: values[rows], members, starts).tolist() == [2**32 - 2, 5]
    assert sum_by_pack(lambda rows: values[rows], members[:0], starts[:1]).tolist() == []


def test_costs_of_packs_count_padding_in_attention_and_cuts_in_tokens() -> None:
    table = length_table([5, 30], num_visual=[2, 1], num_fixed=[2, 1])
    plan = plan_packs(table, PackSpec(capacity=16, alignment=8, overlong="cut"))
    costs = pack_costs(plan, table)
    assert sorted(zip(costs.tokens, costs.visual, costs.attention)) == [(5, 2, 64), (16, 1, 256)]
