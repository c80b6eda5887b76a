"""Prices follow from a model's shape, and cannot be NaN."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.errors import ConfigError
from shardmill.model.plan import PackSpec, length_table
from shardmill.packing.cost import CostModel, ModelShape, PackCosts, pack_costs, sum_by_pack
from shardmill.packing.plan import plan_packs


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_price_that_cannot_be(bad: float) -> None:
    with pytest.raises(ConfigError, match="price of visual"):
        CostModel(token=1, visual=bad, attention=1)


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
    assert CostModel(token=1, visual=10, attention=0.5).of(costs).tolist() == [76.0]


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
