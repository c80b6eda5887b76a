"""What a plan is worth: fill, padding, drops, sources, and how far ranks will wait for each other.

The straggler factor is the mean over steps of the slowest rank's cost over the mean of all ranks:
1.00 is a step in which all finish together, 1.30 one in which most wait for 30 % of their time.
"Before" is the same packs in random order, which is what a shuffling sampler gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.model.plan import LengthTable, PackPlan
from shardmill.model.rng import mix
from shardmill.packing.balance import ModelShape, PackCosts, pack_costs
from shardmill.packing.order import EpochOrder, shuffled

RANKS = (8, 64, 512)  # a node, a small and a large run
PARTS = 4


@dataclass(frozen=True, slots=True)
class Straggler:
    """The factors of one cost at one number of ranks, in random and in planned order."""

    ranks: int
    cost: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class SourceShare:
    """What the plan makes of one source."""

    name: str
    num_samples: int
    num_packed: int
    num_dropped: int
    num_cut: int
    num_tokens: int
    num_visual: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The figures of a plan.

    `padding` is the share of all places that hold no token; `alignment_padding` is the part of it
    inside documents. `parts` are the mean costs of the quarters of an epoch over the mean of all.
    `step_spread` is the standard deviation of visual tokens between steps of 8 packs over their
    mean, in random and in planned order: planned steps are more alike inside, so they differ more.
    `seconds` is what all packs of an epoch take on one GPU, if the plan has prices.
    """

    num_samples: int
    num_packed: int
    num_tokens: int
    num_visual: int
    dropped: dict[str, int]
    num_cut: int
    num_packs: int
    lower_bound: int
    documents: tuple[int, float, int]
    padding: float
    alignment_padding: float
    stragglers: tuple[Straggler, ...]
    parts: tuple[float, ...]
    step_spread: tuple[float, float]
    sources: tuple[SourceShare, ...]
    seconds: float | None = None


def price_packs(
    plan: PackPlan, table: LengthTable, model: ModelShape | None = None
) -> tuple[PackCosts, NDArray[np.float64], str]:
    """Return what each pack holds, what it costs, and the name of that cost.

    The prices are those of the plan, in seconds, or those of the shape of a model.
    """
    plan.check_table(table)
    costs = pack_costs(plan, table)
    if plan.spec.prices is not None:
        return costs, costs.priced(plan.spec.prices), "step time"
    return costs, costs.priced((model or ModelShape()).prices()), "modelled step"


def report_plan(
    plan: PackPlan,
    table: LengthTable,
    model: ModelShape | None = None,
    *,
    seed: int = 0,
    epoch: int = 0,
) -> PlanReport:
    """Return the figures of a plan for the order of one epoch."""
    costs, priced, name = price_packs(plan, table, model)
    documents = np.diff(plan.starts)
    places = len(plan) * plan.spec.capacity
    tokens = int(costs.tokens.sum())
    before = shuffled(len(plan), mix(seed, epoch, 1))
    after = EpochOrder(plan, seed=seed, epoch=epoch).all_packs()
    return PlanReport(
        num_samples=plan.num_rows,
        num_packed=len(plan.members),
        num_tokens=tokens,
        num_visual=int(costs.visual.sum()),
        dropped=_dropped(plan),
        num_cut=len(plan.cut_rows),
        num_packs=len(plan),
        lower_bound=plan.lower_bound,
        documents=(
            int(documents.min()) if len(plan) else 0,
            len(plan.members) / max(1, len(plan)),
            int(documents.max(initial=0)),
        ),
        padding=1 - tokens / places if places else 0.0,
        alignment_padding=_alignment_padding(plan, table) / places if places else 0.0,
        stragglers=_stragglers(costs_by_name(costs, priced, name), before, after),
        parts=_parts(priced[after]),
        step_spread=(_step_spread(costs.visual[before]), _step_spread(costs.visual[after])),
        sources=source_shares(plan, table),
        seconds=None if plan.spec.prices is None else float(priced.sum()),
    )


def straggler(cost: NDArray[Any], order: NDArray[Any], ranks: int) -> float:
    """Return the mean over steps of max over mean; steps that cost nothing wait for nobody."""
    num_steps = len(order) // ranks
    steps = cost[order[: num_steps * ranks]].reshape(num_steps, ranks)
    mean = steps.mean(axis=1)
    busy = mean > 0
    return float((steps.max(axis=1)[busy] / mean[busy]).mean()) if busy.any() else 1.0


def costs_by_name(
    costs: PackCosts, priced: NDArray[np.float64], name: str
) -> dict[str, NDArray[Any]]:
    """Return the costs that ranks may wait for, by what they are called."""
    named = {"visual tokens": costs.visual, "attention": costs.attention, name: priced}
    return {name: cost for name, cost in named.items() if cost.any()}


def _stragglers(
    costs: dict[str, NDArray[Any]], before: NDArray[Any], after: NDArray[Any]
) -> tuple[Straggler, ...]:
    return tuple(
        Straggler(ranks, name, straggler(cost, before, ranks), straggler(cost, after, ranks))
        for ranks in RANKS
        if len(before) >= ranks
        for name, cost in costs.items()
    )


def _parts(cost: NDArray[np.float64]) -> tuple[float, ...]:
    if len(cost) < PARTS or not cost.any():
        return ()
    return tuple(float(part.mean() / cost.mean()) for part in np.array_split(cost, PARTS))


def _step_spread(visual: NDArray[np.int64]) -> float:
    ranks = RANKS[0]
    steps = visual[: len(visual) // ranks * ranks].reshape(-1, ranks).mean(axis=1)
    return float(steps.std() / steps.mean()) if steps.any() else 0.0


def _dropped(plan: PackPlan) -> dict[str, int]:
    counts = np.bincount(plan.drop_reason, minlength=len(plan.drop_reasons))
    return {reason: int(n) for reason, n in zip(plan.drop_reasons, counts) if n}


def _alignment_padding(plan: PackPlan, table: LengthTable) -> int:
    if plan.spec.alignment == 1:
        return 0
    lengths = plan.lengths_of(plan.members, table).astype(np.int64)
    return int((-lengths % plan.spec.alignment).sum())


def source_shares(plan: PackPlan, table: LengthTable) -> tuple[SourceShare, ...]:
    """Return what a plan makes of each source of its table."""

    def sums(rows: Any, values: NDArray[Any] | None = None) -> NDArray[np.int64]:
        found = np.bincount(table.source[rows], values, minlength=len(table.source_names))
        return found.astype(np.int64)

    # Each row is packed or dropped. Counting all rows in order and taking away the few that are
    # dropped or cut is faster than picking the packed ones from all over the table.
    everything, dropped, cut = slice(None), plan.dropped, plan.cut_rows
    samples, num_dropped = sums(everything), sums(dropped)
    tokens = (
        sums(everything, table.num_tokens)
        - sums(cut, table.num_tokens[cut] - plan.cut_lengths)
        - sums(dropped, plan.lengths_of(dropped, table))
    )
    visual = sums(everything, table.num_visual) - sums(dropped, table.num_visual[dropped])
    columns = (samples, samples - num_dropped, num_dropped, sums(cut), tokens, visual)
    return tuple(
        SourceShare(name, *(int(column[number]) for column in columns))
        for number, name in enumerate(table.source_names)
    )
