"""Plans for NeMo's packed data set: packs as lists of sample numbers, from estimated lengths."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.model.lengths import length_table
from shardmill.model.plan import PackPlan, PackSpec
from shardmill.pack.order import EpochOrder
from shardmill.pack.plan import plan_packs
from shardmill.serve.neatlengths import estimate_sample_length, image_config, video_config

logger = logging.getLogger(__name__)


class PackBins(Sequence[list[int]]):
    """The packs of a plan as lists of sample numbers, made when asked."""

    def __init__(self, plan: PackPlan) -> None:
        self.plan = plan

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        return self.plan[range(len(self))[place]].tolist()


def greedy_knapsack(lengths: Sequence[int], max_length: int) -> list[list[int]]:
    """Return packs of sample numbers; samples longer than `max_length` are in none."""
    return greedy_knapsack_vt_balanced(lengths, max_length, np.zeros(len(lengths), np.int64))


def greedy_knapsack_vt_balanced(
    lengths: Sequence[int], max_length: int, visual_tokens: Sequence[int] | NDArray[Any]
) -> list[list[int]]:
    """Return packs in an order in which neighbours have like visual and attention cost."""
    tokens = np.maximum(1, np.asarray(lengths, np.int64))
    visual = np.asarray(visual_tokens, np.int64)
    plan = plan_lengths(tokens, visual, tokens > max_length, max_length, None, 1)
    return list(PackBins(ordered(plan)))


def estimate_lengths(
    dataset: Any, ds_raw: Any, processor: Any, capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return lengths after the shift, and of media; without raw rows, half a pack each."""
    if ds_raw is None:
        logger.warning("no ds_raw: every sample is taken for half a pack")
        size = len(dataset)
        return np.full(size, max(1, capacity // 2)), np.zeros(size, np.int64)
    configs = image_config(processor), video_config(processor)
    if processor is None:
        logger.warning("no processor: media of unknown rules count as 500 tokens each")
    rows = (ds_raw[number] for number in range(len(ds_raw)))
    counts = np.array([estimate_sample_length(row, *configs) for row in rows], np.int64)
    counts = counts.reshape(-1, 2)
    return np.maximum(1, counts[:, 0] - 1), counts[:, 1]


def plan_lengths(
    lengths: NDArray[np.int64],
    visual: NDArray[np.int64],
    left_out: NDArray[np.bool_],
    capacity: int,
    max_packs: int | None,
    alignment: int,
) -> PackPlan:
    """Return the plan of these lengths, without the samples that are left out."""
    table = length_table(
        lengths,
        num_visual=np.minimum(visual, lengths),
        reject=left_out,
        reject_reasons=["longer than a pack"],
    )
    return plan_packs(table, PackSpec(capacity=capacity, alignment=alignment, max_packs=max_packs))


def ordered(plan: PackPlan) -> PackPlan:
    """Return the same packs, numbered in the order of an epoch: alike, and no curriculum."""
    order = EpochOrder(plan, seed=plan.spec.seed, epoch=0).all_packs()
    counts = np.diff(plan.starts)[order]
    starts = np.concatenate([[0], np.cumsum(counts)])
    places = np.arange(len(plan.members)) + np.repeat(plan.starts[order] - starts[:-1], counts)
    number = np.empty(len(plan), np.uint32)
    number[order] = np.arange(len(plan), dtype=np.uint32)
    return replace(
        plan, members=plan.members[places], starts=starts, balanced=number[plan.balanced]
    )
