"""Raw samples by number: the same bytes in all forms, in memory that is used again."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sample_folder import write_sample_folder

from shardmill.model.sample import Document, Sample, Segment
from shardmill.shards.samples import open_samples
from shardmill.train import samples as samples_module
from shardmill.train.samples import Buffers, RawReader, RawSample

SIZED = 120


@pytest.fixture(scope="module")
def sized_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    document = Document((Segment(kind="image", media="jpg"),))
    rows = [
        (Sample(key=f"ü{n:03d}", document=document, media={"jpg": f"{n} ".encode() * n}), {})
        for n in range(1, SIZED + 1)
    ]
    shards = [rows[start : start + 6] for start in range(0, SIZED, 6)]
    return write_sample_folder(tmp_path_factory.mktemp("raw") / "samples", shards)


def check(samples: list[RawSample], numbers: list[int]) -> None:
    for sample, number in zip(samples, numbers, strict=True):
        assert sample.key == f"ü{number + 1:03d}"
        assert bytes(sample.members["jpg"]) == f"{number + 1} ".encode() * (number + 1)
        assert b"segments" in bytes(sample.members["json"])


def test_all_forms_hold_the_same_bytes(sized_folder: Path) -> None:
    reader = pickle.loads(pickle.dumps(RawReader(open_samples(sized_folder))))
    numbers = [0, 5, 6, 119, 60, 61]
    for read in (reader.views, reader.copies, reader.private):
        check(read(numbers), numbers)


def test_shards_beyond_the_limit_are_closed_and_threads_do_not_notice(
    sized_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = open_samples(sized_folder)
    samples._max_open = 3
    monkeypatch.setattr(samples_module, "max_open_shards", lambda: 3)
    reader = RawReader(samples)

    def work(seed: int) -> None:
        numbers = [(seed * 37 + i * 11) % SIZED for i in range(60)]
        check((reader.private if seed % 2 else reader.views)(numbers), numbers)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    assert len(samples._open) <= 3


def test_memory_in_use_is_never_handed_out_again() -> None:
    buffers = Buffers()
    first = buffers.take(1000)
    first[:] = b"a" * 1000
    kept = first[10:20]
    del first
    second = buffers.take(1000)
    second[:] = b"b" * 1000
    assert bytes(kept) == b"a" * 10
    del kept
    gc.collect()
    third = buffers.take(1000)
    assert bytes(third[:10]) == b"a" * 10, "the first buffer is used again"
    assert bytes(second[:10]) == b"b" * 10
    assert len(buffers.take(5 << 20)) == 5 << 20
