"""Length tables and plans: what cannot be is refused, and a plan belongs to its table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import ConfigError, StaleError
from shardmill.model.plan import PackPlan, PackSpec, join_tables, length_table


@pytest.mark.parametrize("bad", [0, -3])
def test_length_below_one_names_its_row(bad: int) -> None:
    with pytest.raises(ConfigError, match=f"at least 1: row 2 has {bad}"):
        length_table([5, 7, bad])


def test_rejected_row_may_have_no_length() -> None:
    table = length_table([5, 0], reject=[0, 1], reject_reasons=["not an image"])
    assert list(table.reject) == [0, 1]


def test_two_to_the_31_samples_are_refused_before_they_are_touched() -> None:
    with pytest.raises(ConfigError, match="2147483648 rows"):
        length_table(np.broadcast_to(np.int32(5), 2**31))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"num_visual": [6, 0]}, "num_visual must lie"),
        ({"num_fixed": [0, -1]}, "num_fixed must lie"),
        ({"num_visual": [1]}, "1 rows, num_tokens 2"),
        ({"num_visual": [0.5, float("nan")]}, "whole numbers"),
        ({"source": [0, 1]}, "source 1 has no name"),
        ({"source": [0, 70000]}, "does not fit into uint16"),
        ({"reject": [0, 1]}, "no reason"),
        ({"shard_names": ["a"], "shard_starts": [0, 3]}, "hold 3 rows"),
        ({"shard_names": ["a"], "shard_starts": [0]}, "one entry more"),
        ({"num_tokens": [[1, 2]]}, "one value a sample"),
        ({"num_tokens": 5}, "list of counts"),
    ],
)
def test_columns_that_cannot_be(columns: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        length_table(**{"num_tokens": [5, 5], **columns})  # type: ignore[arg-type]


def test_locate_finds_the_shard_even_after_an_empty_one() -> None:
    table = length_table([1, 2, 3], shard_names=["a", "b", "c"], shard_starts=[0, 1, 1, 3])
    assert [table.locate(row) for row in range(3)] == [("a", 0), ("c", 0), ("c", 1)]
    with pytest.raises(ConfigError, match="row 3"):
        table.locate(3)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1), st.data())
def test_digest_changes_with_every_row(lengths: list[int], data: st.DataObject) -> None:
    other = list(lengths)
    other[data.draw(st.integers(0, len(lengths) - 1))] += 1
    assert length_table(lengths).digest == length_table(np.array(lengths, np.int64)).digest
    assert length_table(lengths).digest != length_table(other).digest
    assert length_table(lengths).digest != length_table(lengths, exact=False).digest
    assert (
        length_table(lengths).digest
        == length_table(lengths, num_visual=np.zeros_like(lengths)).digest
    )


def test_joined_tables_share_names_and_keep_their_shards() -> None:
    first = length_table([3, 4], source_names=["web"], shard_names=["a"], shard_starts=[0, 2])
    second = length_table(
        [5, 0],
        source=[1, 0],
        source_names=["web", "ocr"],
        reject=[0, 1],
        reject_reasons=["empty"],
        shard_names=["b"],
        shard_starts=[0, 2],
    )
    both = join_tables([first, second])
    assert both.source_names == ("web", "ocr")
    assert list(both.source) == [0, 0, 1, 0]
    assert list(both.reject) == [0, 0, 0, 1]
    assert both.locate(2) == ("b", 0)


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
        ({"balance": "halved"}, "Use one of halving, shuffled"),
        ({"headroom": 1.0}, "headroom"),
        ({"headroom": float("nan")}, "headroom"),
        ({"block": 12}, "power of two"),
        ({"method": "best"}, "Use one of auto, histogram, neighbours, window"),
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
