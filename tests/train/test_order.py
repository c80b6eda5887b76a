"""An order holds each number once, and differs from epoch to epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.train.order import ShuffledSamples, sample_numbers
from shardmill.train.state import NO_PACK, Taken


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 500), st.integers(0, 5), st.one_of(st.none(), st.integers(1, 600)))
def test_each_sample_comes_once(size: int, epoch: int, window: int | None) -> None:
    order = ShuffledSamples(size, seed=1, epoch=epoch, window=window)
    found = order.packs(np.arange(size))
    assert sorted(found.tolist()) == list(range(size))


def test_a_window_keeps_neighbours_together() -> None:
    found = ShuffledSamples(1000, seed=0, epoch=0, window=100).packs(np.arange(1000))
    blocks = found.reshape(10, 100)
    assert np.array_equal(np.unique(blocks // 100, axis=1)[:, 0], blocks[:, 0] // 100)
    assert (blocks // 100 == blocks[:, :1] // 100).all()
    assert not np.array_equal(blocks[:, 0] // 100, np.arange(10))
    with pytest.raises(ConfigError, match="window"):
        ShuffledSamples(10, seed=0, epoch=0, window=0)


def test_numbers_of_two_epochs_and_of_padding() -> None:
    numbers = sample_numbers(100, seed=5)
    epochs = [ShuffledSamples(100, seed=5, epoch=e, window=None) for e in (0, 1)]
    taken = Taken([0, 1, 1], [98, 99, NO_PACK])
    expected = [int(epochs[0].packs(np.array([98]))[0]), int(epochs[1].packs(np.array([99]))[0])]
    assert numbers.of(taken) == [*expected, NO_PACK]
    all_positions = np.arange(100)
    assert not np.array_equal(epochs[0].packs(all_positions), epochs[1].packs(all_positions))
