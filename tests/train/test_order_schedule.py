"""Each pack once an epoch over all ranks, whatever dies and however many come back."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.train.order import NO_PACK, EpochSize, LoaderState, Schedule, Split

NUM_CASES = 2500


def epochs_of(num_packs: int) -> EpochSize:
    """Return epochs that all have so many packs."""
    return lambda epoch: num_packs


def one_step(schedule: Schedule, state: LoaderState, seen: Counter[tuple[int, int]]) -> int:
    """Let every rank take the step; returns the number of empty packs."""
    empty = 0
    split = schedule.split
    for rank in range(split.world):
        mine = Split(
            rank=rank,
            world=split.world,
            batch_size=split.batch_size,
            remainder=split.remainder,
        )
        taken = Schedule(schedule.size, mine).take(state)
        assert len(taken.positions) == split.batch_size
        real = [at for at in zip(taken.epochs, taken.positions) if at[1] != NO_PACK]
        empty += len(taken.positions) - len(real)
        seen.update(real)
    return empty


def prefetched(schedule: Schedule, state: LoaderState, num_workers: int, num_steps: int) -> list:
    """Return the states of steps as workers of an iterable data set make them, in turn."""
    starts = []
    for worker in range(num_workers):
        at = state
        for number in range(num_steps):
            if number % num_workers == worker:
                starts.append((number, at))
            at = schedule.advance(at)
    return [at for _, at in sorted(starts, key=lambda item: item[0])]


def run_case(rng: random.Random) -> None:
    most = rng.randint(1, 80)
    # Epochs of unlike sizes, as a plan for each epoch makes them.
    sizes = [max(1, most - rng.choice([0, 0, 1, 3])) for _ in range(5)]
    num_packs = min(sizes)
    policy = rng.choice(["borrow", "pad"])
    seen: Counter[tuple[int, int]] = Counter()
    state = LoaderState()
    while state.epoch < 3:
        # A life of the job: so many ranks, workers and packs a step, until it is killed. Workers
        # have made more steps than were trained on; these are lost with them.
        world, micro = rng.choice([1, 2, 3, 4, 7, 8]), rng.randint(1, 4)
        if policy == "borrow" and world * micro > num_packs:
            world, micro = 1, 1
        schedule = Schedule(
            lambda epoch: sizes[epoch % 5], Split(world=world, batch_size=micro, remainder=policy)
        )
        num_trained, num_ahead = rng.randint(1, 20), rng.randint(0, 8)
        starts = prefetched(schedule, state, rng.randint(1, 4), num_trained + num_ahead)
        for at in starts[:num_trained]:
            assert at == state
            one_step(schedule, state, seen)
            state = schedule.advance(state)
            if state.epoch == 3:
                break
    expected = {(epoch, at) for epoch in range(3) for at in range(sizes[epoch])}
    assert {key for key in seen if key[0] < 3} == expected
    assert set(seen.values()) == {1}
    # Only a last step that borrows may have begun the fourth epoch.
    assert sum(key[0] == 3 for key in seen) == state.borrowed


def test_thousands_of_lives_see_each_pack_once_an_epoch() -> None:
    rng = random.Random(0)
    for _ in range(NUM_CASES):
        run_case(rng)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 5), st.integers(0, 400))
def test_drop_leaves_out_less_than_a_step(n: int, world: int, micro: int, start: int) -> None:
    split = Split(world=world, batch_size=micro, remainder="drop")
    if split.per_step > n:
        with pytest.raises(ConfigError, match=f"only {n} packs"):
            Schedule(epochs_of(n), split)
        return
    schedule = Schedule(epochs_of(n), split)
    state = schedule.settle(LoaderState(consumed=start % n))
    first, seen = state, Counter[tuple[int, int]]()
    while state.epoch == first.epoch:
        one_step(schedule, state, seen)
        state = schedule.advance(state)
    assert state == LoaderState(epoch=first.epoch + 1)
    assert 0 <= n - first.consumed - len(seen) < split.per_step


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from(["borrow", "pad", "drop"]),
)
def test_steps_left_counts_the_steps(n: int, world: int, micro: int, policy: str) -> None:
    if policy != "pad" and world * micro > n:
        return
    split = Split(world=world, batch_size=micro, remainder=policy)  # type: ignore[arg-type]
    schedule = Schedule(epochs_of(n), split)
    state, steps = LoaderState(), 0
    expected = schedule.steps_left(state)
    while state.epoch == 0:
        assert schedule.steps_left(state) == expected - steps
        state, steps = schedule.advance(state), steps + 1
    assert steps == expected


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 60), st.integers(1, 7), st.integers(0, 100), st.integers(0, 59))
def test_skipping_is_advancing(n: int, micro: int, steps: int, start: int) -> None:
    for policy in ("borrow", "pad", "drop"):
        if policy != "pad" and micro > n:
            continue
        schedule = Schedule(epochs_of(n), Split(batch_size=micro, remainder=policy))  # type: ignore[arg-type]
        state = schedule.settle(LoaderState(consumed=start % n))
        skipped = schedule.skip(state, steps)
        for _ in range(steps):
            state = schedule.advance(state)
        assert skipped == state


def test_ranks_of_a_step_stand_beside_each_other() -> None:
    takes = [
        Schedule(epochs_of(10), Split(rank=r, world=2, batch_size=2)).take(LoaderState(consumed=4))
        for r in range(2)
    ]
    assert [t.positions for t in takes] == [[4, 6], [5, 7]]


def test_a_short_step_borrows_from_the_far_end() -> None:
    schedule = Schedule(epochs_of(10), Split(world=1, batch_size=4))
    short = LoaderState(consumed=8)
    taken = schedule.take(short)
    assert taken.positions == [8, 9, 8, 9]
    assert taken.epochs == [0, 0, 1, 1]
    after = schedule.advance(short)
    assert after == LoaderState(epoch=1, borrowed=2)
    # Eight packs are left: two full steps, aligned with the blocks, and nothing to borrow again.
    assert schedule.steps_left(after) == 2
    assert schedule.take(after).positions == [0, 1, 2, 3]


def test_empty_packs_are_dealt_evenly() -> None:
    split = Split(world=4, batch_size=2, remainder="pad")
    empties = []
    for rank in range(4):
        mine = Split(rank=rank, world=4, batch_size=2, remainder="pad")
        taken = Schedule(epochs_of(13), mine).take(LoaderState(consumed=8))
        empties.append(taken.positions.count(NO_PACK))
    assert empties == [0, 1, 1, 1]
    assert Schedule(epochs_of(13), split).advance(LoaderState(consumed=8)) == LoaderState(epoch=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 2, "world": 2}, "rank 2 is not one of 2 ranks"),
        ({"rank": -1}, "rank -1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"remainder": "loop"}, "borrow, pad, drop"),
    ],
)
def test_a_split_that_cannot_be_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Split(**wrong)


def test_more_ranks_than_packs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"8 ranks x 2 packs = 16, but there are only 10 packs"):
        Schedule(epochs_of(10), Split(world=8, batch_size=2))
    with pytest.raises(ConfigError, match="no packs"):
        Schedule(epochs_of(0), Split())
