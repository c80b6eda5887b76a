"""Prices follow from a model's shape, and cannot be NaN."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.errors import ConfigError
from shardmill.pack.cost import CostModel, ModelShape, PackCosts, sum_by_pack


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
    assert sum_by_pack(values, members, starts).tolist() == [2**32 - 2, 5]
    assert sum_by_pack(values, members[:0], starts[:1]).tolist() == []
