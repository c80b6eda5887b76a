"""The plans behind the epochs of a loader: one for all, or one for each (see `serve.afresh`).

A pack has a number that says where it is found: with one plan, its place there; with a plan an
epoch, also the epoch. Numbers travel to workers; what they stand for is mapped there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from shardmill.io.plans import open_plan
from shardmill.model.manifest import ShardEntry
from shardmill.model.plan import PackPlan
from shardmill.pack.order import EpochOrder
from shardmill.remote.path import as_path
from shardmill.serve.order import Numbers, Order
from shardmill.serve.state import plan_digest


class Plans(Protocol):
    """The plans of all epochs; they pickle, and are mapped again by the process that gets them."""

    @property
    def first(self) -> PackPlan:
        """The plan of epoch 0, whose spec and lengths are those of all."""

    def size(self, epoch: int) -> int:
        """Return the packs of an epoch."""

    def order(self, seed: int, epoch: int) -> Order:
        """Return the numbers of the packs of an epoch in their order."""

    def find(self, number: int) -> tuple[PackPlan, int]:
        """Return the plan that holds a pack, and its place there."""

    def digest(self, shards: tuple[ShardEntry, ...]) -> str:
        """Return the identity of the plans and of the files that they pack."""


class OnePlan:
    """The same packs in every epoch, in another order."""

    def __init__(self, source: PackPlan | Path) -> None:
        self._source = source
        self.first = source if isinstance(source, PackPlan) else open_plan(source)

    def __reduce__(self) -> tuple[Any, ...]:
        return OnePlan, (self._source,)

    def size(self, epoch: int) -> int:
        """Return the packs of the plan."""
        return len(self.first)

    def order(self, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return EpochOrder(self.first, seed=seed, epoch=epoch)

    def find(self, number: int) -> tuple[PackPlan, int]:
        """Return the plan and the number itself."""
        return self.first, number

    def digest(self, shards: tuple[ShardEntry, ...]) -> str:
        """Return the identity of the plan and its files."""
        return plan_digest(self.first, shards)


def plans_of(plan: Plans | PackPlan | Path | str) -> Plans:
    """Return the plans of a loader; a plan or the file of one serves all epochs."""
    if isinstance(plan, PackPlan):
        return OnePlan(plan)
    return OnePlan(as_path(plan)) if isinstance(plan, str | Path) else plan


def pack_numbers(plans: Plans, seed: int) -> Numbers:
    """Return the packs of all epochs in the order of this seed."""
    return Numbers(plans, lambda epoch: plans.order(seed, epoch))
