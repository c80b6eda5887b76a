"""Shuffled samples: each once an epoch, left out if broken, in memory that is used again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sample_folder import write_sample_folder

pytest.importorskip("torch")

from faulty_proxy import faulty_proxy, harm_some
from in_store import put_folder
from torch.utils.data import DataLoader

from shardmill.errors import ConfigError, SampleError, StaleError
from shardmill.model.sample import Document, Sample, Segment
from shardmill.train.health import TooManyFaults
from shardmill.train.samples import RawSample
from shardmill.train.stream import SampleStream

COUNT = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        (
            Sample(
                key=f"k{number:03d}",
                document=Document((Segment(kind="image", media="jpg"),)),
                media={"jpg": f"image {number} ".encode() * (number + 1)},
            ),
            {},
        )
        for number in range(COUNT)
    ]
    shards = [rows[start : start + 30] for start in range(0, COUNT, 30)]
    return write_sample_folder(tmp_path_factory.mktemp("raw") / "samples", shards)


def number_of(sample: RawSample) -> int:
    number = int(sample.key[1:])
    assert bytes(sample.members["jpg"]) == f"image {number} ".encode() * (number + 1)
    return number


def flat(batches: Any) -> list[int]:
    return [number_of(sample) for batch in batches for sample in batch]


@pytest.mark.parametrize("threads", [0, 2])
def test_an_epoch_has_every_sample_once(folder: Path, threads: int) -> None:
    stream = SampleStream(folder, batch_size=8, threads=threads, remainder="pad")
    assert len(stream) == 13
    epochs = [flat(stream), flat(stream)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(COUNT))] * 2
    assert epochs[0] != epochs[1]
    other = SampleStream(folder, batch_size=8, threads=2 - threads, remainder="pad")
    assert flat(other) == epochs[0]


def test_copies_are_bytes(folder: Path) -> None:
    batches = list(SampleStream(folder, batch_size=10, copy=True))
    assert sorted(flat(batches)) == list(range(COUNT))
    assert all(type(m) is bytes for b in batches for s in b for m in s.members.values())


def test_batches_that_are_kept_are_not_overwritten(folder: Path) -> None:
    kept = list(SampleStream(folder, batch_size=4, threads=2, ahead=2))
    assert len(flat(kept)) == COUNT


def test_resume_on_other_ranks(folder: Path) -> None:
    first = SampleStream(folder, batch_size=8, threads=2)
    batches = iter(first)
    trained = flat([next(batches) for _ in range(4)])
    state = first.state_dict()
    batches.close()
    rests = []
    for rank in range(3):
        later = SampleStream(folder, batch_size=5, rank=rank, world=3, remainder="pad", window=None)
        later.load_state_dict(state)
        rests += flat(later)
    assert Counter(trained + rests) == Counter(range(COUNT))
    with pytest.raises(StaleError):
        SampleStream(folder, window=10).load_state_dict(state)


def test_worker_processes_are_refused(folder: Path) -> None:
    loader = DataLoader(SampleStream(folder), batch_size=None, num_workers=0)
    assert sum(map(len, loader)) >= COUNT
    stream = SampleStream(folder)
    with pytest.raises(ConfigError, match="threads instead of num_workers"):
        next(iter(DataLoader(stream, batch_size=None, num_workers=1)))


def test_unreadable_samples_are_left_out_and_named(folder: Path) -> None:
    def decode(sample: RawSample) -> int:
        if sample.key in ("k007", "k070"):
            raise SampleError("not an image")
        return number_of(sample)

    stream = SampleStream(folder, batch_size=10, decode=decode, threads=1, max_faults=2)
    found = [number for batch in stream for number in batch]
    assert sorted(found) == [n for n in range(COUNT) if n not in (7, 70)]
    assert {fault.name for fault in stream.health.faults()} == {
        "sample 7 of shard 000000, k007",
        "sample 10 of shard 000002, k070",
    }
    strict = SampleStream(folder, batch_size=10, decode=decode, max_faults=1)
    with pytest.raises(TooManyFaults, match="k0"):
        list(strict)


@pytest.mark.parametrize(("threads", "copy"), [(0, False), (0, True), (2, False)])
def test_samples_of_a_store_that_misbehaves(
    folder: Path,
    store_env: str,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    copy: bool,
) -> None:
    url = put_folder(folder, store_url)
    options: dict[str, Any] = {"batch_size": 8, "threads": threads, "copy": copy, "max_faults": 0}
    expected = flat(SampleStream(folder, **options))
    with faulty_proxy(store_env, harm_some(2, 0.1, ("503", "cut", "delay"))) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        stream = SampleStream(url, **options)
        batches = iter(stream)
        first = [next(batches) for _ in range(3)]
        state = stream.state_dict()
        batches.close()  # type: ignore[attr-defined]
        again = SampleStream(url, **options)
        again.load_state_dict(state)
        assert flat(first) + flat(again) == expected
    assert proxy.harm
