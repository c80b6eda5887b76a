"""The numbers behind the plots: histograms by source, and what a plan costs step by step.

Small tables are read whole. Of folders with many shards some are taken, evenly spread, and the
answer says how many: ten million rows are plotted as fast as ten thousand.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.plan import LengthTable, PackPlan, join_tables, length_table
from shardmill.model.rng import mix
from shardmill.packing.balance import PackCosts
from shardmill.packing.order import EpochOrder, shuffled
from shardmill.packing.report import costs_by_name, price_packs, source_shares, straggler
from shardmill.shards.tokens.shard import shard_lengths
from shardmill.view.answers import Query
from shardmill.view.context import Context, Folder

MAX_SHARDS = 64
NUM_BINS = 48
MAX_SOURCES = 8
NUM_POINTS = 240


def show_plots(context: Context, query: Query) -> dict[str, Any]:
    """Return the plots of a plan, of a folder of tokens or of a length table."""
    id = query.text("id")
    item = context.item(id)
    if item.kind == "plan":
        return _plan_plots(context, id, query.number("world", 8, most=1 << 20))
    if item.kind == "stage" and context.folder(id).content == "tokens":
        folder = context.folder(id)
        table, num_shards = some_lengths(folder)
        return {"shards": num_shards, "of": len(folder.entries()), **length_plots(table)}
    return {"shards": 1, "of": 1, **length_plots(context.lengths(id))}


def _plan_plots(context: Context, id: str, world: int) -> dict[str, Any]:
    plan, data = context.plan(id), context.data_of_plan(id)
    if data is None:
        raise ConfigError("the lengths that this plan was made from are not in this folder")
    table = context.lengths(data.id)
    key = id, plan.lengths_digest, len(plan)
    priced = context.cached(("priced", *key), lambda: price_plan(plan, table))
    packs = context.cached(("packs", *key), lambda: pack_plots(priced, table))
    steps = context.cached(("steps", *key, world), lambda: step_plots(priced, world))
    lengths = context.cached(("lengths", *key), lambda: length_plots(table))
    return {"data": data.id, **lengths, "plan": {**packs, **steps}}


def some_lengths(folder: Folder) -> tuple[LengthTable, int]:
    """Return the lengths of some shards of tokens, and how many shards these are."""
    with folder.lock:
        tokens = folder.tokens()
        count = min(MAX_SHARDS, len(tokens.entries))
        chosen = np.unique(np.linspace(0, max(0, len(tokens.entries) - 1), count).astype(int))
        tables = [shard_lengths(tokens.entries[n].name, tokens.shard(n)) for n in chosen.tolist()]
    return (join_tables(tables) if tables else length_table(np.empty(0, np.int32))), len(tables)


def length_plots(table: LengthTable) -> dict[str, Any]:
    """Return histograms of lengths and visual tokens by source."""
    good = table.reject == 0
    source = table.source[good]
    return {
        "lengths": histogram(table.num_tokens[good], source, table.source_names),
        "visual": histogram(table.num_visual[good], source, table.source_names),
    }


def histogram(
    values: NDArray[Any],
    group: NDArray[Any] | None = None,
    names: tuple[str, ...] = ("all",),
    *,
    top: int | None = None,
) -> dict[str, Any]:
    """Return edges and counts by group; the rarest groups are added up as "others"."""
    highest = int(values.max(initial=0)) if top is None else top
    # Few whole numbers get a bar each: 6 is counted from 6 to 7.
    whole = values.dtype.kind in "iu" and highest < NUM_BINS
    end, num_bins = (highest + 1, highest + 1) if whole else (max(1, highest), NUM_BINS)
    edges = np.linspace(0, end, num_bins + 1)
    place = np.minimum((values * (num_bins / end)).astype(np.int64), num_bins - 1)
    of = np.zeros(len(values), np.int64) if group is None else group.astype(np.int64)
    counts = np.bincount(of * num_bins + place, minlength=len(names) * num_bins)
    table = counts.reshape(len(names), num_bins)
    order = np.argsort(-table.sum(axis=1), kind="stable")
    rows = [(names[n], table[n]) for n in order[:MAX_SOURCES].tolist() if table[n].any()]
    rest = table[order[MAX_SOURCES:]].sum(axis=0)
    if rest.any():
        rows.append(("others", rest))
    return {
        "edges": [round(float(edge), 3) for edge in edges],
        "series": [{"name": name, "counts": row.tolist()} for name, row in rows],
        "mean": float(values.mean()) if len(values) else 0.0,
        "median": float(np.median(values)) if len(values) else 0.0,
        "max": int(values.max(initial=0)),
        "count": len(values),
        "whole": whole,
    }


@dataclass(frozen=True, slots=True, eq=False)
class PricedPlan:
    """What the packs of a plan cost, and two orders of them: as planned, and only shuffled.

    `cost` is what `prices` are: "step time" in seconds, or "modelled step".
    """

    plan: PackPlan
    costs: PackCosts
    prices: NDArray[np.float64]
    cost: str
    planned: NDArray[np.uint32]
    shuffled: NDArray[Any]


def price_plan(plan: PackPlan, table: LengthTable) -> PricedPlan:
    """Return the costs of a plan by its own prices, or for a 7B model with a vision tower.

    Raises `StaleError` if the table is not the one that was planned.
    """
    return PricedPlan(
        plan,
        *price_packs(plan, table),
        EpochOrder(plan, seed=plan.spec.seed, epoch=0).all_packs(),
        shuffled(len(plan), mix(plan.spec.seed, 0, 1)),
    )


def pack_plots(priced: PricedPlan, table: LengthTable) -> dict[str, Any]:
    """Return fill, documents and visual tokens of packs, and the share of each source."""
    plan, costs = priced.plan, priced.costs
    return {
        "fill": histogram(100 * costs.tokens / plan.spec.capacity, top=100),
        "documents": histogram(np.diff(plan.starts)),
        "visual": histogram(costs.visual),
        "sources": [asdict(share) for share in source_shares(plan, table) if share.num_packed],
    }


def step_plots(priced: PricedPlan, world: int) -> dict[str, Any]:
    """Return what steps cost on `world` ranks, and how long ranks wait for each other."""
    ranks = max(1, min(world, len(priced.plan)))
    named = costs_by_name(priced.costs, priced.prices, priced.cost)
    return {
        "world": ranks,
        "stragglers": [
            {
                "cost": name,
                "shuffled": straggler(cost, priced.shuffled, ranks),
                "planned": straggler(cost, priced.planned, ranks),
            }
            for name, cost in named.items()
        ],
        "steps": _steps(priced, ranks),
    }


def _steps(priced: PricedPlan, ranks: int) -> dict[str, Any]:
    """Return the mean and the slowest rank of some hundred steps, in seconds or mean packs."""
    in_seconds = priced.plan.spec.prices is not None
    mean = 1.0 if in_seconds else float(priced.prices.mean()) or 1.0
    num_steps = len(priced.plan) // ranks
    chosen = np.unique(np.linspace(0, max(0, num_steps - 1), NUM_POINTS).astype(int))[:num_steps]
    answer: dict[str, Any] = {"num_steps": num_steps, "in_seconds": in_seconds}
    for name in ("planned", "shuffled"):
        order = getattr(priced, name)[: num_steps * ranks].reshape(num_steps, ranks)
        steps = priced.prices[order[chosen]] / mean
        answer[name] = {
            "step": chosen.tolist(),
            "mean": [round(value, 4) for value in steps.mean(axis=1).tolist()],
            "max": [round(value, 4) for value in steps.max(axis=1).tolist()],
        }
    return answer
