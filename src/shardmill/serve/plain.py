"""Batches without packing: one document a pack, documents of like length beside each other.

A plan with one document a pack is an order of single documents in blocks of like cost, shuffled by
(seed, epoch). A batch of neighbours, padded to its longest, wastes little; resuming, splitting over
ranks and everything else is that of packs.
"""

from __future__ import annotations

from shardmill.model.lengths import LengthTable
from shardmill.model.plan import Overlong, PackPlan, PackSpec
from shardmill.pack.plan import plan_packs


def plan_single(
    table: LengthTable,
    *,
    max_tokens: int | None = None,
    overlong: Overlong = "fail",
    block: int = 512,
    seed: int = 0,
) -> PackPlan:
    """Return the plan in which each document is a pack of its own.

    `block` documents of like length stay together: make it at least the documents of a step.
    """
    longest = int(table.num_tokens.max(initial=1))
    spec = PackSpec(
        capacity=longest if max_tokens is None else max_tokens,
        max_documents=1,
        overlong=overlong,
        headroom=0.0,
        block=block,
        method="histogram",
        seed=seed,
    )
    return plan_packs(table, spec)
