"""Loaders go on where they were stopped: our own, torchdata's, and a plain DataLoader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")

from in_store import put_folder
from packed_folder import Made
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from shardmill.errors import ConfigError, StaleError
from shardmill.train.collate import TRAINERS
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import TokenReader, TrainPack, TrainRow
from shardmill.train.loader import StepLoader, WorkerDied, loader
from shardmill.train.mix import Mix
from shardmill.train.order import Remainder

Batches = list[list[int]]


def numbers_of(packs: list[TrainPack]) -> list[int]:
    return [pack.number for pack in packs]


def dataset(made: Made) -> PackedDataset:
    return PackedDataset(made.plan_path, made.tokens)


def step_loader(
    made: Made,
    workers: int = 0,
    *,
    rank: int = 0,
    world: int = 1,
    micro: int = 2,
    seed: int = 0,
    remainder: Remainder = "borrow",
    **options: Any,
) -> StepLoader:
    packs = dataset(made)
    sampler = packs.sampler(
        seed=seed, batch_size=micro, rank=rank, world=world, remainder=remainder
    )
    return StepLoader(packs, sampler, collate_fn=numbers_of, num_workers=workers, **options)


class Opened:
    """What the front door opens: somewhere, as `os.fspath` says."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


def test_one_call_makes_the_loader_of_a_plan(made: Made) -> None:
    whole = list(step_loader(made, seed=3))
    for plan, data in [
        (made.plan_path, made.tokens),
        (str(made.plan_path), str(made.tokens)),
        (Opened(made.plan_path), Opened(made.tokens)),
        (made.plan, TokenReader.open(made.tokens).tokens),
        (dataset(made), None),
    ]:
        found = loader(plan, data, batch_size=2, seed=3, collate=numbers_of)
        assert list(found) == whole
    for options in ({"workers": 2, "prefetch": 3}, {"threads": 2}, {"workers": 2, "threads": 1}):
        first = loader(made.plan_path, made.tokens, batch_size=2, seed=3, collate=numbers_of)
        got = take(first, 5)
        later = loader(
            made.plan_path, made.tokens, batch_size=2, seed=3, collate=numbers_of, **options
        )
        later.load_state_dict(first.state_dict())
        assert got + list(later) == whole


def test_batches_by_name(made: Made) -> None:
    for name in TRAINERS:
        made_by_name = next(iter(loader(made.plan_path, made.tokens, batch_size=2, collate=name)))
        assert len(made_by_name)
    with pytest.raises(ConfigError, match="'hugging': batches are made for transformers, torch"):
        loader(made.plan_path, made.tokens, collate="hugging")
    with pytest.raises(ConfigError, match=r"for which trainer.*collate= one of 'transformers', "):
        loader(made.plan_path, made.tokens)


def test_what_a_loader_cannot_take_is_refused(made: Made) -> None:
    packs = dataset(made)
    with pytest.raises(ConfigError, match=r"loader\(plan, data\)"):
        loader(made.plan_path)
    with pytest.raises(ConfigError, match="made already: data"):
        loader(packs, made.tokens)
    mix = Mix({"a": packs}, {"a": 1.0})
    with pytest.raises(ConfigError, match="never ends: remainder"):
        loader(mix, remainder="pad")
    with pytest.raises(ConfigError, match="by workers: threads"):
        loader(mix, threads=2)
    assert len(take(loader(mix, batch_size=3, collate=numbers_of), 2)) == 2


def take(batches: Any, count: int) -> Batches:
    found = []
    for batch in batches:
        found.append(batch)
        if len(found) == count:
            break
    return found


def flat(batches: Batches) -> list[int]:
    return [number for batch in batches for number in batch]


def test_an_epoch_is_each_pack_once_and_epochs_differ(made: Made) -> None:
    packs = step_loader(made, micro=4, remainder="pad")
    assert len(packs) == -(-len(made.plan) // 4)
    epochs = [flat(list(packs)) for _ in range(2)]
    for epoch in epochs:
        assert sorted(n for n in epoch if n >= 0) == list(range(len(made.plan)))
    assert epochs[0] != epochs[1]
    assert packs.epoch == 2
    with pytest.raises(StaleError, match="seed"):
        step_loader(made, seed=1).load_state_dict(packs.state_dict())


def test_state_counts_what_was_handed_out_not_what_was_prefetched(made: Made) -> None:
    whole = list(step_loader(made))
    first = step_loader(made, workers=2, prefetch_factor=3)
    got = take(first, 5)
    assert first.state_dict()["consumed"] == 10
    later = step_loader(made)
    later.load_state_dict(first.state_dict())
    assert later.steps_left == len(whole) - 5
    assert len(later) == len(whole)
    assert got + list(later) == whole


def test_resume_on_other_ranks_and_micro_batches(made: Made) -> None:
    first = [step_loader(made, rank=rank, world=2, micro=3) for rank in range(2)]
    trained = flat([batch for one in first for batch in take(one, 7)])
    state = first[0].state_dict()
    assert all(one.state_dict() == state for one in first)
    later = [step_loader(made, rank=rank, world=5, micro=1, remainder="pad") for rank in range(5)]
    for one in later:
        one.load_state_dict(state)
    rests = [list(one) for one in later]
    assert len({len(rest) for rest in rests}) == 1
    trained += [n for rest in rests for n in flat(rest) if n >= 0]
    assert sorted(trained) == list(range(len(made.plan)))


def test_iterating_again_goes_on_in_the_middle(made: Made) -> None:
    whole = list(step_loader(made))
    packs = step_loader(made)
    assert take(packs, 3) + take(packs, 4) + list(packs) == whole
    assert packs.state_dict()["borrowed"] == 1
    packs.begin_epoch(0)
    assert list(packs) == whole
    # Trainers would call it with their own count, and leave the epoch in which we are.
    assert not hasattr(packs, "set_epoch")


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_resumes_by_the_iterators_state(made: Made, workers: int) -> None:
    def stateful() -> StatefulDataLoader:
        packs = dataset(made)
        return StatefulDataLoader(
            packs,
            batch_sampler=packs.sampler(batch_size=2),
            collate_fn=numbers_of,
            num_workers=workers,
        )

    whole_loader = step_loader(made)
    whole = [list(whole_loader) for _ in range(2)]
    first = stateful()
    got = take(first, 9)
    state = first.state_dict()
    later = stateful()
    later.load_state_dict(state)
    assert got + list(later) == whole[0]
    assert list(later) == whole[1]


def test_a_plain_loader_resumes_by_the_number_of_batches(made: Made) -> None:
    whole = list(step_loader(made))
    packs = dataset(made)
    sampler = packs.sampler(batch_size=2)
    got = take(DataLoader(packs, batch_sampler=sampler, collate_fn=numbers_of), 6)
    state = sampler.state_after(len(got))
    sampler = packs.sampler(batch_size=2)
    sampler.load_state_dict(state)
    assert got + list(DataLoader(packs, batch_sampler=sampler, collate_fn=numbers_of)) == whole


def test_dropped_packs_are_said(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    batches = list(step_loader(made, micro=4, remainder="drop"))
    left = len(made.plan) % 4
    assert left
    assert len(flat(batches)) == len(made.plan) - left
    assert f"leave out its last {left} of {len(made.plan)} packs" in caplog.text


class Deadly(TokenReader):
    """A reader that kills its process at one row."""

    at = -1

    def read(self, row: int) -> TrainRow:
        if row == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(row)


def test_a_worker_that_dies_is_named_with_what_it_read(made: Made) -> None:
    reader = Deadly.open(made.tokens)
    packs = PackedDataset(made.plan_path, reader)
    sampler = packs.sampler()
    number = next(iter(sampler))[0]
    row = int(made.plan[number][0])
    reader.at = row
    shard, inside = divmod(row, 64)
    expected = rf"DataLoader worker.*at pack {number}, row {inside} of shard {shard:05d}"
    with pytest.raises(WorkerDied, match=expected):
        list(StepLoader(packs, sampler, collate_fn=numbers_of, num_workers=1))


def test_an_idle_worker_that_dies_is_an_error(made: Made) -> None:
    packs = dataset(made)
    options = {"num_workers": 1, "persistent_workers": True, "collate_fn": numbers_of}
    loader = StepLoader(packs, packs.sampler(), **options)
    list(loader)
    # torch may say it by a signal first, wherever the loop is just then.
    with pytest.raises((WorkerDied, RuntimeError), match="DataLoader worker"):
        for worker in loader._iterator._workers:
            worker.kill()
        list(loader)
    named = loader._named(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."))
    assert isinstance(named, WorkerDied) and "reading nothing" in str(named)


def test_nothing_is_left_behind(made: Made) -> None:
    packs = dataset(made)
    folder = Path(packs.health.folder)
    list(StepLoader(packs, packs.sampler(), collate_fn=numbers_of, num_workers=1))
    assert folder.exists()
    del packs
    assert not folder.exists()


def test_workers_read_from_a_store(made: Made, store_url: str) -> None:
    def ids_of(packs: PackedDataset, **options: Any) -> list[list[list[int]]]:
        batches = StepLoader(packs, packs.sampler(batch_size=8), collate_fn=list, **options)
        return [[pack.pack.input_ids.tolist() for pack in batch] for batch in batches]

    near = PackedDataset(made.plan_path, made.tokens)
    far = PackedDataset(made.plan_path, put_folder(made.tokens, store_url))
    # The workers are spawned: those that are forked from a user of the store would hang.
    assert ids_of(far, num_workers=2) == ids_of(near)
    assert far.faults() == []


def test_only_workers_that_talk_to_a_store_are_spawned(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.train.loader.is_in_use", lambda: True)
    packs = dataset(made)
    local = StepLoader(packs, packs.sampler(), num_workers=1, collate_fn=list)
    assert local.multiprocessing_context is None
    monkeypatch.setattr(PackedDataset, "is_remote", True)
    far = StepLoader(packs, packs.sampler(), num_workers=1, collate_fn=list)
    assert far.multiprocessing_context.get_start_method() == "spawn"


SCRIPT = """
import multiprocessing, os, sys, time
from shardmill.train.loader import EndWithParent

def work(number):
    time.sleep(1.0)  # the parent dies meanwhile
    EndWithParent(lambda worker: print("began", worker, flush=True))(number)
    time.sleep(600)

if __name__ == "__main__":
    for number in range(2):
        process = multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(number,))
        process.start()
        print(process.pid, flush=True)
    time.sleep(600)
"""


def test_workers_end_with_a_parent_that_died_before_they_began() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "fork"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    workers = [psutil.Process(pid) for pid in pids]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 60
    while any(w.is_running() and w.status() != "zombie" for w in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
