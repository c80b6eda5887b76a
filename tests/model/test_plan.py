"""A pack spec refuses what cannot be; a plan knows its table and its cut rows."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.errors import ConfigError, StaleError
from shardmill.model.lengths import length_table
from shardmill.model.plan import PackPlan, PackSpec


def tiny_plan(digest: str = "d") -> PackPlan:
    none = np.empty(0, np.uint32)
    return PackPlan(
        spec=PackSpec(capacity=8),
        lengths_digest=digest,
        num_rows=3,
        members=np.array([2, 0, 1], np.uint32),
        starts=np.array([0, 2, 3]),
        balanced=np.array([1, 0], np.uint32),
        dropped=none,
        drop_reason=none.astype(np.uint8),
        drop_reasons=(),
        cut_rows=np.array([1], np.uint32),
        cut_lengths=np.array([8], np.int32),
        method="window",
        why="",
        lower_bound=2,
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"capacity": 0}, "capacity must be 1"),
        ({"capacity": 1 << 40}, "capacity must be 1"),
        ({"alignment": 9}, "alignment must be 1..capacity"),
        ({"alignment": 0}, "alignment must be"),
        ({"max_documents": 0}, "max_documents must be at least 1"),
        ({"max_packs": -1}, "max_packs must be at least 1"),
        ({"balance": "halved"}, "use one of halving, shuffled"),
        ({"headroom": 1.0}, "headroom"),
        ({"headroom": float("nan")}, "headroom"),
        ({"block": 12}, "power of two"),
        ({"method": "best"}, "use one of auto, histogram, window"),
        ({"overlong": "split"}, "overlong must be"),
    ],
)
def test_spec_that_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PackSpec(**{"capacity": 8, **fields})  # type: ignore[arg-type]


def test_rows_of_a_pack() -> None:
    plan = tiny_plan()
    assert [plan[pack].tolist() for pack in range(len(plan))] == [[2, 0], [1]]
    with pytest.raises(IndexError):
        plan[2]


def test_cut_rows_have_their_planned_length() -> None:
    table = length_table([3, 11, 5])
    assert tiny_plan().lengths_of(np.array([0, 1, 2], np.uint32), table).tolist() == [3, 8, 5]


def test_plan_for_other_data_is_refused() -> None:
    table = length_table([3, 11, 5])
    tiny_plan(table.digest).check_table(table)
    with pytest.raises(StaleError, match="made from other lengths"):
        tiny_plan(table.digest).check_table(length_table([3, 11, 6]))
