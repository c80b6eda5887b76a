"""Ranks that wait for each other: python benchmarks/balance.py

Goals, for visual tokens and attention in one order: the dearest rank at most 1.03 times the mean at
32k with 8 and 64 ranks, 1.05 at 8k; every quarter of an epoch within 2 % of the mean cost.
NeMo's packs in random order are what its loader serves by default, sorted by visual tokens what it
serves without shuffling. "Modelled" prices a 7B model with a 0.7B vision tower. This measures the
internal planner and order, on lengths in memory.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import packers
from side_by_side import QUICK, save_report, sized

sys.path.insert(0, str(packers.SUPPORT_DIR))
from packing_lengths import draw

from shardmill.model.plan import PackPlan, PackSpec, length_table
from shardmill.packing.balance import Halving, ModelShape, PackCosts, pack_costs
from shardmill.packing.loops import load_loops
from shardmill.packing.order import EpochOrder
from shardmill.packing.plan import plan_packs
from shardmill.packing.report import straggler

NUM, RANKS, EPOCHS = sized(1_000_000, 20_000), (8, 64) if QUICK else (8, 64, 512), sized(20, 2)
PRICES = ModelShape().prices()


def balance_of(capacity: int) -> str:
    """Return the table of waiting for one size of packs."""
    tokens, visual = draw("vlm", capacity, NUM)
    table = length_table(tokens, num_visual=visual)
    ours = plan_packs(table, PackSpec(capacity=capacity))
    found = pack_costs(ours, table)
    nemo = _nemo_costs(capacity, tokens, visual)
    shuffle = np.random.default_rng(0).permutation
    rows = [
        ("NeMo, its loader's random order", nemo, shuffle(len(nemo))),
        ("NeMo, sorted by visual tokens", nemo, np.arange(len(nemo))),
        ("our packs in random order", found, shuffle(len(found))),
        ("shardmill", found, EpochOrder(ours, seed=0, epoch=0).all_packs()),
    ]
    heads = " | ".join(f"{ranks} ranks: visual / attention / modelled" for ranks in RANKS)
    lines = [f"| | {heads} | spread of steps | drift |", "|---" * (len(RANKS) + 3) + "|"]
    lines += [f"| {name} | {_cells(costs, order)} |" for name, costs, order in rows]
    title = f"## vlm {capacity}: {len(ours):,} packs, NeMo {len(nemo):,}"
    return "\n".join([title, "", *lines, "", _quarters(ours, found)])


def _cells(costs: PackCosts, order: np.ndarray) -> str:
    measured = (costs.visual, costs.attention, costs.priced(PRICES))
    cells = [
        " / ".join(f"{straggler(cost, order, ranks):.3f}" for cost in measured) for ranks in RANKS
    ]
    steps = costs.visual[order][: len(order) // 8 * 8].reshape(-1, 8).mean(axis=1)
    drift = np.corrcoef(np.arange(len(steps)), steps)[0, 1]
    return " | ".join([*cells, f"{steps.std() / steps.mean():.3f}", f"{drift:+.2f}"])


def _nemo_costs(capacity: int, tokens: np.ndarray, visual: np.ndarray) -> PackCosts:
    knapsack = packers.nemo_module().greedy_knapsack_vt_balanced
    packs = knapsack(tokens.tolist(), capacity, visual.tolist())
    long = tokens.astype(np.int64)
    return PackCosts(
        *(np.array([c[p].sum() for p in packs]) for c in (long, visual.astype(np.int64), long**2))
    )


def _quarters(plan: PackPlan, costs: PackCosts) -> str:
    measured = {"visual": costs.visual, "attention": costs.attention, "cost": costs.priced(PRICES)}
    worst = dict.fromkeys(measured, 0.0)
    for epoch in range(EPOCHS):
        order = EpochOrder(plan, seed=1, epoch=epoch).all_packs()
        for name, cost in measured.items():
            parts = np.array_split(cost[order], 4)
            far = max(abs(part.mean() / cost.mean() - 1) for part in parts)
            worst[name] = max(worst[name], float(far))
    listed = ", ".join(f"{name} {100 * far:.2f} %" for name, far in worst.items())
    return f"Farthest quarter from the mean, over {EPOCHS} epochs: {listed}."


def speed() -> str:
    """Return how long ordering takes."""
    rng = np.random.default_rng(0)
    lines = ["| packs | balanced order, CPU s | order of an epoch, CPU s |", "|---:|---:|---:|"]
    for num in (10_000,) if QUICK else (100_000, 1_000_000, 10_000_000):
        visual, attention = rng.integers(0, 30_000, num), rng.integers(10**6, 10**9, num)
        start = time.process_time()
        order = Halving().order(visual, attention, block=512, key=1, loops=load_loops())
        middle = time.process_time()
        table = length_table(np.ones(8, np.int32))
        plan = plan_packs(table, PackSpec(capacity=1))
        values = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
        starts = np.arange(num + 1)
        big = PackPlan(**{**values, "starts": starts, "balanced": order})
        again = time.process_time()
        EpochOrder(big, seed=0, epoch=1).all_packs()
        lines.append(f"| {num:,} | {middle - start:.2f} | {time.process_time() - again:.2f} |")
    return "## Time\n\n" + "\n".join(lines)


if __name__ == "__main__":
    save_report(
        __file__,
        "Balance across ranks",
        [*(balance_of(capacity) for capacity in (32768, 8192, 4096)), speed()],
    )
