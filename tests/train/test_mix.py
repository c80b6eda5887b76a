"""A mix keeps its weights everywhere, repeats nothing, and can change its weights on the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from packed_folder import Made

from shardmill.errors import ConfigError, StaleError
from shardmill.model.plan import PackSpec
from shardmill.packing.plan import plan_packs
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import TokenReader, TrainPack
from shardmill.train.loader import StepLoader
from shardmill.train.mix import CYCLE, Interleaving, Mix, cycle_counts

WEIGHTS = {"a": 3.0, "b": 1.0}


def numbers_of(packs: list[TrainPack]) -> list[int]:
    return [pack.number for pack in packs]


@pytest.fixture(scope="module")
def mix(made: Made) -> Mix:
    reader = TokenReader.open(made.tokens)
    small = plan_packs(made.table, PackSpec(capacity=600), loops="plain")
    sources = {"a": PackedDataset(made.plan_path, reader), "b": PackedDataset(small, reader)}
    return Mix(sources, WEIGHTS)


def steps(sampler: Any, count: int) -> list[list[int]]:
    batches = iter(sampler)
    return [next(batches) for _ in range(count)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_weights_become_counts_of_a_cycle(weights: list[float]) -> None:
    counts = cycle_counts(np.array(weights))
    assert counts.sum() == CYCLE
    assert counts.min() >= 1
    exact = np.array(weights) / sum(weights) * CYCLE
    assert np.abs(counts - exact).max() <= len(weights)


def test_every_stretch_has_its_share() -> None:
    mixed = Interleaving({"a": 0.5, "b": 0.3, "c": 0.2})
    sources, counts = mixed.at(np.arange(3 * CYCLE))
    for source, share in enumerate((0.5, 0.3, 0.2)):
        so_far = np.cumsum(sources == source)
        assert np.abs(so_far - share * np.arange(1, 3 * CYCLE + 1)).max() < 3
        assert np.array_equal(counts[sources == source], np.arange(so_far[-1]))
    assert mixed.taken(5000) == dict(zip("abc", np.bincount(sources[:5000]).tolist()))


@pytest.mark.parametrize("run", [1, 4])
def test_ranks_share_the_stream_and_sources_run_through_epochs(mix: Mix, run: int) -> None:
    mix = Mix(mix.sources, WEIGHTS, run=run)
    per_rank = [steps(mix.sampler(rank=r, world=2, batch_size=2), 100) for r in range(2)]
    seen = [n for a, b in zip(*per_rank) for n in [*a, *b]]
    size = len(mix.sources["a"])
    of_a = [n for n in seen if n < size]
    assert abs(len(of_a) - 300) <= run
    first_epoch = of_a[:size]
    assert sorted(first_epoch) == list(range(size))
    of_b = Counter(n for n in seen if n >= size)
    assert max(of_b.values()) - min(of_b.values()) <= 1


def test_resume_is_exact_on_other_ranks(mix: Mix) -> None:
    whole = [n for batch in steps(mix.sampler(), 120) for n in batch]
    loader = StepLoader(mix, mix.sampler(batch_size=4), collate_fn=numbers_of)
    batches = iter(loader)
    got = [n for _ in range(10) for n in next(batches)]
    later = mix.sampler(batch_size=2)
    later.load_state_dict(loader.state_dict())
    got += [n for batch in steps(later, 40) for n in batch]
    assert got == whole
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    with pytest.raises(ConfigError, match="no epochs"):
        loader.begin_epoch(1)


@pytest.mark.parametrize("run", [1, 3])
def test_new_weights_repeat_nothing(mix: Mix, run: int) -> None:
    size = len(mix.sources["a"])
    first = Mix(mix.sources, WEIGHTS, run=run).sampler()
    seen = [n for batch in steps(first, 50) for n in batch]
    state = first.start
    for _ in range(50):
        state = first.advance(state)
    plain = first.to_plain(state)
    assert sum(plain["taken"].values()) == 50
    later = Mix(mix.sources, {"a": 1.0, "b": 9.0}, run=run).sampler()
    later.load_state_dict(plain)
    seen += [n for batch in steps(later, 200) for n in batch]
    for part in ([n for n in seen if n < size], [n for n in seen if n >= size]):
        size_of = size if part[0] < size else len(mix) - size
        epochs = [part[i : i + size_of] for i in range(0, len(part), size_of)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)


def test_a_source_may_go_and_come_back(mix: Mix) -> None:
    alone = Mix({"a": mix.sources["a"]}, {"a": 1.0})
    both = mix.sampler()
    state = both.start
    for _ in range(40):
        state = both.advance(state)
    without = alone.sampler()
    without.load_state_dict(both.to_plain(state))
    kept = without.to_plain(without.advance(without.start))
    assert kept["taken"] == {"a": 31, "b": 10}
    again = mix.sampler()
    again.load_state_dict(kept)
    assert again.taken(again.start) == {"a": 31, "b": 10}


def test_the_order_in_which_sources_are_given_changes_nothing(mix: Mix) -> None:
    evenly = {"a": 1.0, "b": 1.0}
    one, other = (Mix({n: mix.sources[n] for n in names}, evenly) for names in ("ab", "ba"))
    state = one.sampler().advance(one.sampler().start)
    resumed = other.sampler()
    resumed.load_state_dict(one.sampler().to_plain(state))
    assert steps(resumed, 9) == steps(one.sampler(), 10)[1:]


def test_a_damaged_state_is_refused(mix: Mix) -> None:
    sampler = mix.sampler()
    plain = sampler.to_plain(sampler.start)
    bad: list[dict[str, Any]] = [{**plain, name: None} for name in plain]
    bad += [{n: v for n, v in plain.items() if n != name} for name in plain]
    bad += [{**plain, "mixed": -1}, {**plain, "before": {"a": "3"}}, {**plain, "run": True}]
    for state in bad:
        with pytest.raises(ConfigError):
            sampler.load_state_dict(state)


def test_what_cannot_be_mixed(mix: Mix, made: Made) -> None:
    for weights in ({"a": 1.0}, {"a": 1.0, "b": 0.0}, {"a": 1.0, "b": float("nan")}):
        with pytest.raises(ConfigError):
            Mix(mix.sources, weights).sampler()
    with pytest.raises(ConfigError, match="at least one source"):
        Mix({}, {})
    plain = mix.sampler().to_plain(mix.sampler().start)
    with pytest.raises(StaleError, match="seed"):
        mix.sampler(seed=1).load_state_dict(plain)
    swapped = Mix({"a": mix.sources["b"], "b": mix.sources["a"]}, WEIGHTS)
    with pytest.raises(
        StaleError, match=r"source 'a': this state packs by another plan \(checksum"
    ):
        swapped.sampler().load_state_dict(plain)
    with pytest.raises(ConfigError, match="not the state of a mix"):
        mix.sampler().load_state_dict({})
