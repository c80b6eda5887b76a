"""An order holds each pack once, spreads costs over an epoch, and is the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_lengths import draw

from shardmill.model.plan import PackPlan, PackSpec, length_table
from shardmill.packing.balance import pack_costs
from shardmill.packing.order import EpochOrder, permute, segments, shuffled, spread_blocks
from shardmill.packing.plan import plan_packs


def plan_of(num_packs: int, block: int = 512) -> PackPlan:
    """A plan of packs of one sample each."""
    return plan_packs(
        length_table(np.full(num_packs, 7, np.int32)),
        PackSpec(capacity=7, block=block, method="histogram"),
        loops="plain",
    )


@settings(max_examples=40, deadline=None)
@given(
    num_packs=st.integers(0, 900),
    block=st.sampled_from([1, 8, 512]),
    seed=st.integers(0, 2**64),
    epoch=st.integers(0, 99),
)
def test_each_pack_comes_once_an_epoch(num_packs: int, block: int, seed: int, epoch: int) -> None:
    order = EpochOrder(plan_of(num_packs, block), seed=seed, epoch=epoch)
    assert sorted(order.all_packs().tolist()) == list(range(num_packs))


def test_positions_can_be_asked_in_any_order() -> None:
    order = EpochOrder(plan_of(9000), seed=1, epoch=2)
    some = np.array([8999, 0, 4500, 0])
    assert order.packs(some).tolist() == order.all_packs()[some].tolist()
    with pytest.raises(IndexError, match=r"0\.\.8999"):
        order.packs(np.array([9000]))


def test_epochs_and_seeds_differ() -> None:
    plan = plan_of(2000)
    orders = [EpochOrder(plan, seed=s, epoch=e).all_packs() for s, e in ((0, 0), (0, 1), (1, 0))]
    assert np.mean(orders[0] == orders[1]) < 0.2
    assert np.mean(orders[0] == orders[2]) < 0.2


@settings(deadline=None)
@given(st.integers(1, 5000), st.sampled_from([1, 8, 512]))
def test_segments_cover_all_positions_in_whole_blocks(num_packs: int, block: int) -> None:
    covered = 0
    for start, stop, size in segments(num_packs, block):
        assert start == covered
        assert (stop - start) % size == 0
        covered = stop
    assert covered == num_packs


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(0, 99))
def test_neighbouring_blocks_fall_into_different_halves(num_blocks: int, key: int) -> None:
    order = spread_blocks(num_blocks, key)
    when = np.empty(num_blocks, np.int64)
    when[order] = np.arange(num_blocks)
    first_half = when < (num_blocks + 1) // 2
    pairs = first_half[: num_blocks // 2 * 2].reshape(-1, 2)
    # An odd one out may push one pair over the border.
    assert np.count_nonzero(pairs.sum(axis=1) != 1) <= 1


@pytest.mark.parametrize("key", range(9))
def test_neighbouring_pairs_fall_the_opposite_way(key: int) -> None:
    # If the cheaper block of one pair comes early, that of the next pair comes late.
    when = np.argsort(spread_blocks(64, key))
    early = (when < 32).reshape(-1, 4)
    assert np.all(early[:, 0] != early[:, 2])


@pytest.mark.parametrize(("capacity", "limit"), [(32768, 1.03), (8192, 1.05)])
def test_ranks_of_a_step_and_quarters_of_an_epoch_cost_alike(capacity: int, limit: float) -> None:
    tokens, visual = draw("vlm", capacity, 1_000_000 if capacity == 32768 else 200_000)
    table = length_table(tokens, num_visual=visual)
    plan = plan_packs(table, PackSpec(capacity=capacity))
    held = pack_costs(plan, table)
    costs = [held.visual, held.attention]
    order = EpochOrder(plan, seed=3, epoch=1).all_packs()
    for ranks in (8, 64):
        for cost in costs:
            steps = cost[order][: len(order) // ranks * ranks].reshape(-1, ranks)
            assert (steps.max(axis=1) / steps.mean(axis=1)).mean() <= limit
    price = 42e9 * capacity + 16.2e9 * costs[0] + 786e3 * costs[1]
    for quarter in np.array_split(price[order], 4):
        assert quarter.mean() == pytest.approx(price.mean(), rel=0.02)


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_each_place_is_taken_once(size: int, key: int) -> None:
    assert sorted(shuffled(size, key).tolist()) == list(range(size))


def test_order_is_the_same_everywhere() -> None:
    assert shuffled(12, 1).tolist() == [5, 3, 7, 11, 6, 10, 4, 0, 8, 1, 2, 9]


def test_single_places_agree_with_the_whole() -> None:
    whole = shuffled(40_000, 9)
    some = np.array([39_999, 0, 17_000])
    assert permute(some, 40_000, 9).tolist() == whole[some].tolist()


def test_keys_and_neighbours_are_unrelated() -> None:
    one, two = shuffled(10_000, 1), shuffled(10_000, 2)
    assert np.mean(one == two) < 0.01
    assert abs(np.corrcoef(np.arange(10_000), one)[0, 1]) < 0.05
    assert np.mean(np.abs(np.diff(one)) == 1) < 0.01
