"""The state of a loader, and the orders of epochs: each number once, another order each epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import ConfigError, StaleError
from shardmill.model.manifest import FileEntry, ShardEntry
from shardmill.model.plan import PackSpec, length_table
from shardmill.packing.plan import plan_packs
from shardmill.train.order import (
    NO_PACK,
    EpochNumbers,
    LoaderState,
    Taken,
    shuffled_samples,
    split_of,
    state_from_plain,
    state_to_plain,
)
from shardmill.train.plans import plan_digest

STATE = LoaderState(seed=3, epoch=2, consumed=40, borrowed=1)


def load(plain: Any, digest: str = "d", seed: int = 3, num_packs: int = 100) -> LoaderState:
    return state_from_plain(plain, digest, "p", seed=seed, size=lambda epoch: num_packs)


def test_a_state_survives_a_checkpoint() -> None:
    assert load(state_to_plain(STATE, "d", "p")) == STATE


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"digest": "other"}, StaleError, "this plan over other data.*digest other, here d"),
        ({"digest": "x", "plan": "q"}, StaleError, r"another plan \(checksum q, here p\)"),
        ({"seed": 4}, StaleError, "saved with seed 4, the loader has seed 3"),
        ({"consumed": 100}, ConfigError, "101 packs of the epoch are consumed"),
        ({"consumed": -1}, ConfigError, "consumed must be a count, got -1"),
        ({"epoch": True}, ConfigError, "epoch must be a count"),
        ({"epoch": 1.0}, ConfigError, "epoch must be a count"),
        ({"version": 2}, ConfigError, "not a loader state of version 1"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load({**state_to_plain(STATE, "d", "p"), **changed})


@pytest.mark.parametrize("plain", [None, [], {}, {"version": 1, "digest": "d", "seed": 3}])
def test_what_is_no_state_is_refused(plain: Any) -> None:
    with pytest.raises(ConfigError):
        load(plain)


def test_the_digest_depends_on_lengths_spec_and_files() -> None:
    table = length_table(np.arange(1, 50))
    files = {"bin": FileEntry("shards/a.bin", 1, "aa")}
    shards = (ShardEntry("a", 49, files),)
    plan = plan_packs(table, PackSpec(capacity=64), loops="plain")
    other_spec = plan_packs(table, PackSpec(capacity=65), loops="plain")
    other_data = plan_packs(length_table(np.arange(1, 51)), PackSpec(capacity=64), loops="plain")
    other_files = (ShardEntry("a", 49, {"bin": FileEntry("shards/a.bin", 1, "bb")}),)
    digests = {
        plan_digest(plan, shards),
        plan_digest(plan, other_files),
        plan_digest(other_spec, shards),
        plan_digest(other_data, shards),
    }
    assert len(digests) == 4
    # As a packer of somebody's own makes them after a change that its spec does not show.
    other_packs = replace(plan, balanced=plan.balanced[::-1])
    assert plan_digest(other_packs, shards) not in digests
    again = plan_packs(table, PackSpec(capacity=64), loops="plain")
    assert plan_digest(again, shards) == plan_digest(plan, shards)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 500), st.integers(0, 5), st.one_of(st.none(), st.integers(1, 600)))
def test_each_sample_comes_once(size: int, epoch: int, window: int | None) -> None:
    found = shuffled_samples(size, seed=1, epoch=epoch, window=window)(np.arange(size))
    assert sorted(found.tolist()) == list(range(size))


def test_a_window_keeps_neighbours_together() -> None:
    found = shuffled_samples(1000, seed=0, epoch=0, window=100)(np.arange(1000))
    blocks = found.reshape(10, 100)
    assert np.array_equal(np.unique(blocks // 100, axis=1)[:, 0], blocks[:, 0] // 100)
    assert (blocks // 100 == blocks[:, :1] // 100).all()
    assert not np.array_equal(blocks[:, 0] // 100, np.arange(10))
    with pytest.raises(ConfigError, match="window"):
        shuffled_samples(10, seed=0, epoch=0, window=0)


def test_numbers_of_two_epochs_and_of_padding() -> None:
    epochs = [shuffled_samples(100, seed=5, epoch=e) for e in (0, 1)]
    numbers = EpochNumbers(lambda epoch: 100, epochs.__getitem__)
    taken = Taken([0, 1, 1], [98, 99, NO_PACK])
    expected = [int(epochs[0](np.array([98]))[0]), int(epochs[1](np.array([99]))[0])]
    assert numbers.of(taken) == [*expected, NO_PACK]
    all_positions = np.arange(100)
    assert not np.array_equal(epochs[0](all_positions), epochs[1](all_positions))


def test_ranks_are_those_of_the_launcher_before_torch_distributed_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = split_of(None, None, 1, "borrow")
    assert (found.rank, found.world) == (1, 2)
    assert split_of(0, 1, 1, "borrow").world == 1
    monkeypatch.delenv("RANK")
    assert split_of(None, None, 1, "borrow").world == 1
