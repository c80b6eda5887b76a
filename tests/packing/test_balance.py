"""Balanced order: each pack once, aligned runs alike, the same everywhere and with all loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.packing.balance import Halving, Shuffled
from shardmill.packing.loops import PLAIN, load_loops


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
