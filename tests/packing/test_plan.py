"""Laws of every plan: each sample once, no pack over its capacity, the same plan everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_lengths import SETS, draw

from shardmill.errors import ConfigError
from shardmill.model.plan import LengthTable, PackPlan, PackSpec, length_table
from shardmill.packing.fit import TOO_LONG
from shardmill.packing.plan import (
    BEYOND_MAX_PACKS,
    MEDIA_TOO_LONG,
    SHUFFLE_ROWS_SINGLY,
    block_order,
    plan_packs,
    usable_lengths,
)

specs = st.builds(
    PackSpec,
    capacity=st.integers(18, 200),
    alignment=st.integers(1, 16),
    overlong=st.sampled_from(["drop", "cut"]),
    max_documents=st.none() | st.integers(1, 9),
    max_packs=st.none() | st.integers(1, 9),
    method=st.sampled_from(["auto", "histogram", "window"]),
    block=st.sampled_from([1, 4, 512]),
    seed=st.integers(0, 2**64),
    epoch=st.integers(0, 3),
)


@st.composite
def tables(draw_value: st.DrawFn) -> LengthTable:
    rows = draw_value(st.lists(st.tuples(st.integers(1, 220), st.integers(0, 220)), max_size=120))
    tokens = np.array([total for total, _ in rows], np.int32)
    visual = np.array([min(part, total) for total, part in rows], np.int32)
    reject = np.array([(total + part) % 19 == 0 for total, part in rows], np.uint8)
    return length_table(
        tokens,
        num_visual=visual,
        num_fixed=visual,
        reject=reject,
        reject_reasons=["not an image"],
        exact=draw_value(st.booleans()),
    )


def aligned(plan: PackPlan, table: LengthTable, pack: int) -> np.ndarray:
    lengths = plan.lengths_of(plan[pack], table)
    return -(-lengths // plan.spec.alignment) * plan.spec.alignment


@settings(max_examples=150, deadline=None)
@given(table=tables(), spec=specs)
def test_each_sample_is_packed_or_dropped_once_and_packs_fit(
    table: LengthTable, spec: PackSpec
) -> None:
    plan = plan_packs(table, spec, loops="plain")
    assert sorted([*plan.members.tolist(), *plan.dropped.tolist()]) == list(range(len(table)))
    room = spec.capacity if table.exact else int(spec.capacity * (1 - spec.headroom))
    for pack in range(len(plan)):
        assert aligned(plan, table, pack).sum() <= room
        assert 1 <= len(plan[pack]) <= (spec.max_documents or len(table))
    assert sorted(plan.balanced.tolist()) == list(range(len(plan)))
    assert len(plan) <= (spec.max_packs or len(table))
    assert np.all(plan.cut_lengths >= table.num_fixed[plan.cut_rows])
    assert np.all(plan.cut_lengths < table.num_tokens[plan.cut_rows])
    if spec.max_packs is None:
        assert len(plan) >= plan.lower_bound
        assert len(plan) == min(plan.counts.values())


@settings(max_examples=60, deadline=None)
@given(table=tables(), spec=specs)
def test_compiled_and_plain_plans_are_equal(table: LengthTable, spec: PackSpec) -> None:
    plain, compiled = (plan_packs(table, spec, loops=name) for name in ("plain", "compiled"))
    for name in ("members", "starts", "balanced", "dropped", "drop_reason", "cut_rows"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(compiled, name))
    assert (plain.method, plain.why, plain.counts) == (
        compiled.method,
        compiled.why,
        compiled.counts,
    )


def test_plan_is_the_same_on_every_machine() -> None:
    lengths = [1 + number * 7919 % 997 for number in range(500)]
    table = length_table(lengths, num_visual=np.array(lengths) // 2)
    plan = plan_packs(table, PackSpec(capacity=2048))
    assert len(plan) == 125
    assert plan[0].tolist() == [58, 93, 128]
    assert plan.balanced[:8].tolist() == [112, 103, 114, 99, 94, 74, 87, 111]


@pytest.mark.parametrize(("name", "capacity"), SETS)
def test_packs_are_within_a_ten_thousandth_of_the_bound(name: str, capacity: int) -> None:
    tokens, visual = draw(name, capacity, 60_000)
    table = length_table(tokens, num_visual=visual)
    plan = plan_packs(table, PackSpec(capacity=capacity))
    assert len(plan) <= max(plan.lower_bound + 1, 1.0001 * plan.lower_bound)
    assert len(plan) <= plan.counts["histogram"]


def test_plain_and_compiled_agree_on_real_lengths() -> None:
    tokens, visual = draw("img", 4096, 70_000)
    table = length_table(tokens, num_visual=visual)
    plain, compiled = (
        plan_packs(table, PackSpec(capacity=4096), loops=name) for name in ("plain", "compiled")
    )
    np.testing.assert_array_equal(plain.members, compiled.members)
    np.testing.assert_array_equal(plain.balanced, compiled.balanced)


def test_epochs_give_documents_other_neighbours() -> None:
    table = length_table(draw("vlm", 8192, 2000)[0])
    first, second = (plan_packs(table, PackSpec(capacity=8192, epoch=e)) for e in (0, 1))
    assert first.members.tolist() != second.members.tolist()


def test_max_packs_keeps_a_fair_sample() -> None:
    tokens, visual = draw("vlm", 8192, 20_000)
    table = length_table(tokens, num_visual=visual)
    whole = plan_packs(table, PackSpec(capacity=8192))
    part = plan_packs(table, PackSpec(capacity=8192, max_packs=400))
    assert len(part) == 400
    assert part.drop_reasons[part.drop_reason[0]] == BEYOND_MAX_PACKS
    share = [visual[plan.members].sum() / tokens[plan.members].sum() for plan in (whole, part)]
    assert share[1] == pytest.approx(share[0], rel=0.05)


def test_last_pack_is_kept_though_it_is_not_full() -> None:
    plan = plan_packs(length_table([5, 5, 5]), PackSpec(capacity=10))
    assert sorted(len(plan[pack]) for pack in range(len(plan))) == [1, 2]


def test_estimates_leave_headroom_and_exact_lengths_do_not() -> None:
    spec = PackSpec(capacity=100, headroom=0.1)
    assert len(plan_packs(length_table([50] * 10), spec)) == 5
    assert len(plan_packs(length_table([50] * 10, exact=False), spec)) == 10


def test_failing_on_an_overlong_sample_names_it() -> None:
    table = length_table([5, 11, 12], shard_names=["a", "b"], shard_starts=[0, 1, 3])
    with pytest.raises(
        ConfigError, match=r"2 of 3 samples .* row 1 \(sample 0 of shard b\) with 11"
    ):
        plan_packs(table, PackSpec(capacity=10))


def test_window_smaller_than_a_pack_is_refused() -> None:
    with pytest.raises(ConfigError, match="window of 4 samples holds less than one pack"):
        plan_packs(length_table([10] * 50), PackSpec(capacity=100, method="auto,window=4"))


def test_headroom_may_not_eat_the_alignment() -> None:
    with pytest.raises(ConfigError, match="less than one alignment"):
        plan_packs(length_table([1], exact=False), PackSpec(capacity=8, alignment=8))


def test_table_without_rows_gives_an_empty_plan() -> None:
    plan = plan_packs(length_table(np.empty(0, np.int32)), PackSpec(capacity=8))
    assert len(plan) == 0
    assert plan.lower_bound == 0


@pytest.mark.parametrize("bad", [0, -4])
def test_lengths_from_a_file_are_checked_too(bad: int) -> None:
    table = length_table([5, 5])
    broken = np.array([5, bad], np.int32)
    values = {name: getattr(table, name) for name in table.__dataclass_fields__}
    with pytest.raises(ConfigError, match=f"row 1 has {bad}"):
        plan_packs(LengthTable(**{**values, "num_tokens": broken}), PackSpec(capacity=8))


def test_cut_leaves_media_whole_or_drops_them() -> None:
    table = length_table([5, 20, 20], num_fixed=[0, 3, 15])
    usable = usable_lengths(table, PackSpec(capacity=10, alignment=4, overlong="cut"))
    assert usable.units.tolist() == [2, 2, 0]
    assert usable.cut_rows.tolist() == [1]
    assert usable.cut_lengths.tolist() == [8]
    assert [usable.drop_reasons[r] for r in usable.drop_reason] == [MEDIA_TOO_LONG]


def test_drop_counts_rejected_and_overlong_rows_by_reason() -> None:
    table = length_table([50, 5, 0], reject=[0, 0, 1], reject_reasons=["not an image"])
    usable = usable_lengths(table, PackSpec(capacity=10, overlong="drop"))
    assert usable.dropped.tolist() == [0, 2]
    assert [usable.drop_reasons[r] for r in usable.drop_reason] == [TOO_LONG, "not an image"]


def test_longest_length_does_not_overflow() -> None:
    table = length_table([2**31 - 1, 1])
    usable = usable_lengths(table, PackSpec(capacity=10, alignment=2, overlong="drop"))
    assert usable.dropped.tolist() == [0]


def test_blocks_cover_all_rows() -> None:
    for num_rows in (0, 1, 100, SHUFFLE_ROWS_SINGLY + 5):
        blocks, block_rows = block_order(num_rows, 3)
        rows = (blocks[:, None] * block_rows + np.arange(block_rows)).ravel()
        assert sorted(rows[rows < num_rows].tolist()) == list(range(num_rows))
