from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import integers, lists

from shardmill.model.manifest import group_stats, power_bars
from shardmill.model.stage import Tally


@given(lists(integers(0, 1 << 40), min_size=1))
def test_bars_hold_every_observed_value_once(values: list[int]) -> None:
    tally = Tally()
    for value in values:
        tally.observe("text chars", value)
    groups = group_stats(tally.stats)
    assert list(groups) == ["text chars"]
    bars = power_bars(groups["text chars"])
    assert sum(n for _, n in bars) == len(values)
    limits = [limit for limit, _ in bars]
    assert limits == sorted(set(limits))
    assert limits[0] <= max(values) * 2 + 1 and limits[-1] >= max(values)


def test_counts_stand_in_their_groups() -> None:
    groups = group_stats({"tokens": 5, "source|a": 2, "source|b|c": 3})
    assert groups == {"": {"tokens": 5}, "source": {"a": 2, "b|c": 3}}


def test_strange_limits_are_left_out() -> None:
    assert power_bars({"<=" + "9" * 5000: 1, "<=x": 1, "<=": 1, "<=४": 1, "sum": 3}) == []
    assert power_bars({"<=0": 2, "<=4": 1}) == [(0, 2), (1, 0), (2, 0), (4, 1)]
