"""One plan serves every epoch, each in another order; it travels as the name of its file."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from packed_folder import Made

from shardmill.train.order import OnePlan, pack_numbers, plans_of
from shardmill.train.state import NO_PACK, Taken, plan_digest


@pytest.mark.parametrize("form", ["plan", "path", "name"])
def test_a_plan_in_any_form(made: Made, form: str) -> None:
    given = {"plan": made.plan, "path": made.plan_path, "name": str(made.plan_path)}[form]
    plans = plans_of(given)
    again = pickle.loads(pickle.dumps(plans))
    for one in (plans, again):
        assert np.array_equal(one.first.members, made.plan.members)
        assert one.size(0) == one.size(9) == len(made.plan)
        assert one.find(5) == (one.first, 5)
        assert one.digest(()) == plan_digest(made.plan)
    assert plans_of(plans) is plans
    if form != "plan":
        assert len(pickle.dumps(plans)) < 500


def test_numbers_are_packs_in_the_order_of_an_epoch(made: Made) -> None:
    numbers, size = pack_numbers(OnePlan(made.plan), seed=3), len(made.plan)
    epochs = [numbers.of(Taken([e] * size, list(range(size)))) for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(size))
    assert epochs[0] != epochs[1]
    assert numbers.of(Taken([0, 0], [4, NO_PACK])) == [epochs[0][4], NO_PACK]
