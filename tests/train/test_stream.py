"""Streams give what loaders give, made ahead of time and asked for in time."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

from faulty_proxy import faulty_proxy, harm_some
from in_store import put_folder
from packed_folder import Made
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from shardmill.errors import ConfigError
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import TokenReader, TrainPack
from shardmill.train.loader import StepLoader
from shardmill.train.stream import PackedStream


def numbers_of(packs: list[TrainPack]) -> list[int]:
    return [pack.number for pack in packs]


def ids_of(packs: list[TrainPack]) -> list[list[int]]:
    return [pack.pack.input_ids.tolist() for pack in packs]


def stream(made: Made, threads: int = 0) -> PackedStream:
    packs = PackedDataset(made.plan_path, made.tokens)
    return PackedStream(packs, packs.sampler(batch_size=2), numbers_of, threads=threads)


def two_epochs(made: Made) -> list[list[list[int]]]:
    packs = PackedDataset(made.plan_path, made.tokens)
    loader = StepLoader(packs, packs.sampler(batch_size=2), collate_fn=numbers_of)
    return [list(loader), list(loader)]


@pytest.mark.parametrize("threads", [0, 3])
def test_by_itself(made: Made, threads: int) -> None:
    one = stream(made, threads)
    whole = two_epochs(made)
    assert len(one) == len(whole[0])
    assert [list(one), list(one)] == whole


def test_threads_stop_when_the_loop_does(made: Made) -> None:
    one = stream(made, threads=2)
    whole = two_epochs(made)
    batches = iter(one)
    got = [next(batches) for _ in range(5)]
    state = one.state_dict()
    batches.close()
    assert state["consumed"] == 10
    other = stream(made)
    other.load_state_dict(state)
    assert got + list(other) == whole[0]


def test_with_workers_more_than_needed(made: Made) -> None:
    one = stream(made)
    loader = StepLoader(one, one.steps, num_workers=3)
    whole = two_epochs(made)
    assert [list(loader), list(loader)] == whole
    with pytest.raises(ConfigError, match="cannot persist"):
        StepLoader(one, one.steps, num_workers=1, persistent_workers=True)


def test_it_can_be_sent_to_a_worker(made: Made) -> None:
    one = stream(made)
    batches = iter(one)
    got = [next(batches) for _ in range(3)]
    assert got + list(pickle.loads(pickle.dumps(one))) == two_epochs(made)[0]


def test_torchdatas_loader_without_workers(made: Made) -> None:
    whole = two_epochs(made)
    first = StatefulDataLoader(stream(made), batch_size=None)
    batches = iter(first)
    got = [next(batches) for _ in range(4)]
    later = StatefulDataLoader(stream(made), batch_size=None)
    later.load_state_dict(first.state_dict())
    assert got + list(later) == whole[0]
    with pytest.raises(ConfigError, match="no state to save"):
        next(iter(StatefulDataLoader(stream(made), batch_size=None, num_workers=1)))


def test_a_plain_loader_keeps_the_order(made: Made) -> None:
    one = stream(made)
    assert list(DataLoader(one, batch_size=None, num_workers=2)) == two_epochs(made)[0]
    with pytest.raises(ConfigError, match="threads"):
        PackedStream(one.packs, one.steps, numbers_of, threads=-1)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_store_that_misbehaves_changes_nothing(
    made: Made, store_env: str, store_url: str, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    url = put_folder(made.tokens, store_url)
    packs = PackedDataset(made.plan_path, made.tokens)
    expected = list(StepLoader(packs, packs.sampler(batch_size=4), collate_fn=ids_of))
    with faulty_proxy(store_env, harm_some(1, 0.1, ("503", "cut", "delay"))) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        far = PackedDataset(made.plan_path, url, max_faults=0)
        found = PackedStream(far, far.sampler(batch_size=4), ids_of, threads=threads)
        batches = iter(found)
        first = [next(batches) for _ in range(7)]
        state = found.state_dict()
        batches.close()
        again = PackedStream(far, far.sampler(batch_size=4), ids_of, threads=threads)
        again.load_state_dict(state)
        assert first + list(again) == expected
    assert proxy.harm


class Telling(TokenReader):
    """A reader that says what it was told will be read."""

    is_remote = True

    def prefetch(self, rows: Sequence[int]) -> None:
        TOLD.extend(rows)


TOLD: list[int] = []


@pytest.mark.parametrize("threads", [0, 2])
def test_the_rows_of_coming_batches_are_asked_for(made: Made, threads: int) -> None:
    TOLD.clear()
    packs = PackedDataset(made.plan_path, Telling.open(made.tokens))
    order = two_epochs(made)[0]
    first = [row for batch in order[:4] for n in batch for row in made.plan[n].tolist()]
    batches = iter(
        PackedStream(packs, packs.sampler(batch_size=2), numbers_of, threads=threads, ahead=3)
    )
    assert next(batches) == order[0]
    end = time.monotonic() + 60
    while not set(first) <= set(TOLD):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert set(TOLD) == set(first)
    batches.close()  # type: ignore[attr-defined]
