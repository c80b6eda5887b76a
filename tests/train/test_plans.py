"""One plan for every epoch, or another one for each, made in the background."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from packed_folder import Made

from shardmill.errors import ConfigError, StaleError
from shardmill.model.plan import PackPlan, length_table
from shardmill.packing.plan import plan_packs
from shardmill.shards.plans import open_plan, write_lengths, write_plan
from shardmill.shards.tokens.shard import token_lengths
from shardmill.train import plans as plans_module
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import TokenReader, TrainPack
from shardmill.train.loader import StepLoader
from shardmill.train.order import NO_PACK, EpochNumbers, LoaderState, Split, Taken
from shardmill.train.plans import (
    EpochPlans,
    OnePlan,
    make_plan,
    plan_digest,
)
from shardmill.train.provenance import packs_of_step
from shardmill.train.stream import PackedStream


@pytest.mark.parametrize("form", ["plan", "path", "name"])
def test_a_plan_in_any_form(made: Made, form: str) -> None:
    given = {"plan": made.plan, "path": made.plan_path, "name": str(made.plan_path)}[form]
    plans = OnePlan(given)
    again = pickle.loads(pickle.dumps(plans))
    for one in (plans, again):
        assert np.array_equal(one.first.members, made.plan.members)
        assert one.size(0) == one.size(9) == len(made.plan)
        assert one.find(5) == (one.first, 5)
        assert one.digest(()) == plan_digest(made.plan)
    if form != "plan":
        assert len(pickle.dumps(plans)) < 500


def test_numbers_are_packs_in_the_order_of_an_epoch(made: Made) -> None:
    plans, size = OnePlan(made.plan), len(made.plan)
    numbers = EpochNumbers(plans.size, partial(plans.order, 3))
    epochs = [numbers.of(Taken([e] * size, list(range(size)))) for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(size))
    assert epochs[0] != epochs[1]
    assert numbers.of(Taken([0, 0], [4, NO_PACK])) == [epochs[0][4], NO_PACK]


@pytest.fixture
def plans(made: Made, tmp_path: Path) -> EpochPlans:
    return EpochPlans(made.plan_path, made.lengths_path, tmp_path / "plans")


def replanned(made: Made, plans: EpochPlans) -> PackedDataset:
    return PackedDataset(plans.like, made.tokens, lengths=plans.lengths, epoch_plans=plans.folder)


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


def test_a_plan_is_a_function_of_lengths_spec_and_epoch(made: Made, plans: EpochPlans) -> None:
    found, _ = plans.find(3 << 32)
    expected = plan_packs(made.table, replace(made.plan.spec, epoch=3))
    assert np.array_equal(found.members, expected.members)
    assert np.array_equal(found.balanced, expected.balanced)
    assert plans.size(3) == len(expected)
    assert plans.find(7)[0] is plans.first


def test_another_plan_in_the_place_of_an_epochs_is_refused(made: Made, plans: EpochPlans) -> None:
    write_plan(plans.path(2), plan_packs(made.table, replace(made.plan.spec, epoch=1)))
    with pytest.raises(StaleError, match=r"-2\.plan is not the plan of epoch 2 of .*remove it"):
        plans.size(2)


def test_documents_meet_others_each_epoch(plans: EpochPlans) -> None:
    zero, one, two = (neighbours(plans.find(epoch << 32)[0]) for epoch in range(3))
    for former, later in ((zero, one), (one, two)):
        assert len(former & later) < len(former) / 5


def test_the_next_plan_is_made_while_this_epoch_is_served(plans: EpochPlans) -> None:
    plans.order(0, 0)
    wait_for(plans.path(1))
    assert plans._planner is not None
    assert plans._planner.wait(60) == 0
    assert open_plan(plans.path(1)).spec.epoch == 1


def test_whoever_needs_a_plan_waits_for_its_planner(
    plans: EpochPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by: list[int] = []
    make = plans_module.make_plan

    def slow(like: Path, lengths: Path, epoch: int, path: Path) -> None:
        made_by.append(epoch)
        time.sleep(0.2)
        make(like, lengths, epoch, path)

    monkeypatch.setattr(plans_module, "make_plan", slow)
    others = [pickle.loads(pickle.dumps(plans)) for _ in range(6)]
    threads = [threading.Thread(target=other.size, args=(4,)) for other in others]
    for thread in threads:
        thread.start()
    while not made_by:
        time.sleep(0.01)
    plans._plan_in_background(4)
    assert plans._planner is None
    for thread in threads:
        thread.join()
    assert made_by == [4]


def test_a_planner_that_died_is_replaced(
    plans: EpochPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans_module.sys, "executable", "/bin/false")
    plans.order(0, 0)
    assert plans._planner is not None
    plans._planner.wait()
    assert not plans.path(1).exists()
    assert plans.size(1) > 0


def test_plans_of_epochs_long_gone_are_removed(plans: EpochPlans) -> None:
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
        world = split.pop("world", 1)
        batches = []
        for rank in range(world):
            sampler = packs.sampler(seed=5, rank=rank, world=world, **split)
            loader = StepLoader(packs, sampler, collate_fn=rows_of)
            if state is not None:
                loader.load_state_dict(state)
            batches.append((next(iter(loader)), loader.state_dict()))
        split["world"] = world
        (state,) = {str(after): after for _, after in batches}.values()
        seen += [rows for batch, _ in batches for rows in batch]
    return seen


def test_killed_and_resumed_each_document_comes_once_an_epoch(
    made: Made, plans: EpochPlans
) -> None:
    packs = replanned(made, plans)
    splits = [{"batch_size": 3}, {"batch_size": 2, "world": 4}, {"batch_size": 7}]
    total = sum(plans.size(epoch) for epoch in range(3))
    seen = lives(packs, -(-total // 6), splits)
    # Borrowed packs of the fourth epoch may be among the last.
    counts = Counter(row for rows in seen for row in rows)
    assert min(counts.values()) == 3
    for epoch in range(3):
        plan, _ = plans.find(epoch << 32)
        assert {tuple(plan[k].tolist()) for k in range(len(plan))} <= set(seen)


@pytest.mark.parametrize("streamed", [False, True])
def test_workers_map_the_plans(made: Made, plans: EpochPlans, streamed: bool) -> None:
    packs = replanned(made, plans)
    sampler = packs.sampler(seed=1, batch_size=4)
    data = PackedStream(packs, sampler, rows_of, threads=0) if streamed else packs
    options = {} if streamed else {"collate_fn": rows_of}
    loader = StepLoader(data, sampler, num_workers=2, **options)
    epochs = [[tuple(rows) for batch in loader for rows in batch] for _ in range(2)]
    for epoch, found in enumerate(epochs):
        plan, _ = plans.find(epoch << 32)
        own = {tuple(plan[k].tolist()) for k in range(len(plan))}
        assert len(own & set(found)) >= len(plan) - 4
    assert len(packs.faults()) == 0


def test_why_names_the_packs_of_a_later_epoch(made: Made, plans: EpochPlans) -> None:
    step = plans.size(0) // 4 + 5
    packs = packs_of_step(plans, Split(batch_size=4), LoaderState(), step)
    assert {pack.epoch for pack in packs} == {1}
    plan, _ = plans.find(1 << 32)
    assert [pack.rows for pack in packs] == [plan[pack.pack].tolist() for pack in packs]


def test_what_cannot_be_is_refused(made: Made, plans: EpochPlans, tmp_path: Path) -> None:
    reader = TokenReader.open(made.tokens)
    later = tmp_path / "later.plan"
    write_plan(later, replace(made.plan, spec=replace(made.plan.spec, epoch=2)))
    with pytest.raises(ConfigError, match="plan of epoch 2"):
        EpochPlans(later, made.lengths_path, tmp_path)
    other = tmp_path / "other.bin"
    write_lengths(other, length_table([1, 2, 3]))
    with pytest.raises(StaleError, match="other lengths"):
        EpochPlans(made.plan_path, other, tmp_path).size(1)
    one = PackedDataset(made.plan_path, reader).sampler()
    with pytest.raises(StaleError):
        replanned(made, plans).sampler().load_state_dict(one.state_after(3))


def start(*words: str | Path) -> subprocess.Popen[bytes]:
    nobody_named_code = "[[], []]"
    command = [sys.executable, "-m", "shardmill.train.plans", *map(str, words), nobody_named_code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_a_process_makes_the_plan_of_an_epoch(made: Made, tmp_path: Path) -> None:
    assert start(made.plan_path, made.lengths_path, "2", tmp_path / "x.plan").wait(120) == 0
    expected = plan_packs(made.table, replace(made.plan.spec, epoch=2))
    assert np.array_equal(open_plan(tmp_path / "x.plan").members, expected.members)


def test_lengths_may_be_those_of_token_shards(made: Made, tmp_path: Path) -> None:
    spec, table = made.plan.spec, token_lengths(made.tokens)
    write_plan(tmp_path / "first.plan", plan_packs(table, spec))
    make_plan(tmp_path / "first.plan", made.tokens, 3, tmp_path / "x.plan")
    expected = plan_packs(table, replace(spec, epoch=3))
    assert np.array_equal(open_plan(tmp_path / "x.plan").members, expected.members)
    write_plan(tmp_path / "other.plan", replace(made.plan, lengths_digest="0"))
    with pytest.raises(StaleError, match="other lengths"):
        make_plan(tmp_path / "other.plan", made.tokens, 3, tmp_path / "y.plan")


def test_it_ends_when_its_input_does(tmp_path: Path) -> None:
    pipe = tmp_path / "never.plan"
    os.mkfifo(pipe)  # whoever opens it waits
    planner = start(pipe, tmp_path, "1", tmp_path / "x.plan")
    assert planner.stdin is not None
    planner.stdin.close()
    assert planner.wait(120) == 1
