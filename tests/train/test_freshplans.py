"""Each epoch has packs of its own, the same for everybody, made once and before they are needed."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from packed_folder import Made

from shardmill.errors import ConfigError, StaleError
from shardmill.model.lengths import length_table
from shardmill.model.plan import PackPlan
from shardmill.pack.plan import plan_packs
from shardmill.shards.lengths import write_lengths
from shardmill.shards.plans import open_plan, write_plan
from shardmill.train import freshplans as afresh
from shardmill.train.dataset import PackedDataset, TrainPack
from shardmill.train.documents import TokenReader
from shardmill.train.freshplans import FreshPlans
from shardmill.train.loader import StepLoader
from shardmill.train.mix import Mix
from shardmill.train.provenance import packs_of_step
from shardmill.train.state import LoaderState, Split
from shardmill.train.stream import PackedStream


@pytest.fixture
def plans(made: Made, tmp_path: Path) -> FreshPlans:
    return FreshPlans(made.plan_path, made.lengths_path, tmp_path / "plans")


def rows_of(batch: list[TrainPack]) -> list[tuple[int, ...]]:
    return [tuple(pack.pack.samples.tolist()) for pack in batch]


def neighbours(plan: PackPlan) -> set[tuple[int, int]]:
    packs = [sorted(plan[number].tolist()) for number in range(len(plan))]
    return {(a, b) for rows in packs for i, a in enumerate(rows) for b in rows[i + 1 :]}


def wait_for(path: Path) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_plan_is_a_function_of_lengths_spec_and_epoch(made: Made, plans: FreshPlans) -> None:
    found, _ = plans.find(3 << 32)
    expected = plan_packs(made.table, replace(made.plan.spec, epoch=3))
    assert np.array_equal(found.members, expected.members)
    assert np.array_equal(found.balanced, expected.balanced)
    assert plans.size(3) == len(expected)
    assert plans.find(7)[0] is plans.first


def test_documents_meet_others_each_epoch(plans: FreshPlans) -> None:
    zero, one, two = (neighbours(plans.find(epoch << 32)[0]) for epoch in range(3))
    for former, later in ((zero, one), (one, two)):
        assert len(former & later) < len(former) / 5


def test_the_next_plan_is_made_while_this_epoch_is_served(plans: FreshPlans) -> None:
    plans.order(0, 0)
    wait_for(plans.path(1))
    assert plans._maker is not None
    assert plans._maker.wait(60) == 0
    assert open_plan(plans.path(1)).spec.epoch == 1


def test_whoever_needs_a_plan_waits_for_its_maker(
    plans: FreshPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by: list[int] = []
    make = afresh.make_plan

    def slow(like: Path, lengths: Path, epoch: int, path: Path) -> None:
        made_by.append(epoch)
        time.sleep(0.2)
        make(like, lengths, epoch, path)

    monkeypatch.setattr(afresh, "make_plan", slow)
    others = [pickle.loads(pickle.dumps(plans)) for _ in range(6)]
    threads = [threading.Thread(target=other.size, args=(4,)) for other in others]
    for thread in threads:
        thread.start()
    while not made_by:
        time.sleep(0.01)
    plans._begin(4)
    assert plans._maker is None
    for thread in threads:
        thread.join()
    assert made_by == [4]


def test_a_maker_that_died_is_replaced(plans: FreshPlans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(afresh.sys, "executable", "/bin/false")
    plans.order(0, 0)
    assert plans._maker is not None
    plans._maker.wait()
    assert not plans.path(1).exists()
    assert plans.size(1) > 0


def test_plans_of_epochs_long_gone_are_removed(plans: FreshPlans) -> None:
    other = plans.folder / "0123456789abcdef-1.plan"
    other.touch()
    begun = plans.folder / f".{plans.path(1).name}.0123456789abcdef"
    begun.touch()
    for epoch in range(1, 5):
        plans.order(0, epoch)
    names = {path.name for path in plans.folder.iterdir() if path.suffix == ".plan"}
    assert names - {plans.path(5).name} == {plans.path(3).name, plans.path(4).name, other.name}
    assert not begun.exists()


def lives(packs: PackedDataset, steps: int, splits: list[dict]) -> list[tuple[int, ...]]:
    """Return the packs of `steps` steps, killed and resumed after each split."""
    state, seen = None, []
    for number in range(steps):
        split = splits[number % len(splits)]
        world = split.pop("dp_world", 1)
        batches = []
        for rank in range(world):
            sampler = packs.sampler(seed=5, dp_rank=rank, dp_world=world, **split)
            loader = StepLoader(packs, sampler, collate_fn=rows_of)
            if state is not None:
                loader.load_state_dict(state)
            batches.append((next(iter(loader)), loader.state_dict()))
        split["dp_world"] = world
        (state,) = {str(after): after for _, after in batches}.values()
        seen += [rows for batch, _ in batches for rows in batch]
    return seen


def test_killed_and_resumed_each_document_comes_once_an_epoch(
    made: Made, plans: FreshPlans
) -> None:
    packs = PackedDataset(plans, TokenReader.open(made.tokens), lengths=made.lengths_path)
    splits = [{"micro_batch": 3}, {"micro_batch": 2, "dp_world": 4}, {"micro_batch": 7}]
    total = sum(plans.size(epoch) for epoch in range(3))
    seen = lives(packs, -(-total // 6), splits)
    # Borrowed packs of the fourth epoch may be among the last.
    counts = Counter(row for rows in seen for row in rows)
    assert min(counts.values()) == 3
    for epoch in range(3):
        plan, _ = plans.find(epoch << 32)
        assert {tuple(plan[k].tolist()) for k in range(len(plan))} <= set(seen)


@pytest.mark.parametrize("streamed", [False, True])
def test_workers_map_the_plans(made: Made, plans: FreshPlans, streamed: bool) -> None:
    packs = PackedDataset(plans, TokenReader.open(made.tokens))
    sampler = packs.sampler(seed=1, micro_batch=4)
    data = PackedStream(packs, sampler, rows_of, threads=0) if streamed else packs
    options = {} if streamed else {"collate_fn": rows_of}
    loader = StepLoader(data, sampler, num_workers=2, **options)
    epochs = [[tuple(rows) for batch in loader for rows in batch] for _ in range(2)]
    for epoch, found in enumerate(epochs):
        plan, _ = plans.find(epoch << 32)
        own = {tuple(plan[k].tolist()) for k in range(len(plan))}
        assert len(own & set(found)) >= len(plan) - 4
    assert len(packs.faults()) == 0


def test_why_names_the_packs_of_a_later_epoch(made: Made, plans: FreshPlans) -> None:
    step = plans.size(0) // 4 + 5
    packs = packs_of_step(plans, Split(micro_batch=4), LoaderState(), step)
    assert {pack.epoch for pack in packs} == {1}
    plan, _ = plans.find(1 << 32)
    assert [pack.rows for pack in packs] == [plan[pack.pack].tolist() for pack in packs]


def test_what_cannot_be_is_refused(made: Made, plans: FreshPlans, tmp_path: Path) -> None:
    reader = TokenReader.open(made.tokens)
    with pytest.raises(ConfigError, match="afresh"):
        Mix({"a": PackedDataset(plans, reader)})
    later = tmp_path / "later.plan"
    write_plan(later, replace(made.plan, spec=replace(made.plan.spec, epoch=2)))
    with pytest.raises(ConfigError, match="plan of epoch 2"):
        FreshPlans(later, made.lengths_path, tmp_path)
    other = tmp_path / "other.bin"
    write_lengths(other, length_table([1, 2, 3]))
    with pytest.raises(StaleError, match="other lengths"):
        FreshPlans(made.plan_path, other, tmp_path).size(1)
    one = PackedDataset(made.plan_path, reader).sampler()
    with pytest.raises(StaleError):
        PackedDataset(plans, reader).sampler().load_state_dict(one.state_after(3))
