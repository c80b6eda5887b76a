"""All shards of a folder as one list."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from samples_for_tests import store_samples

from shardmill.errors import FormatError, ShardmillError
from shardmill.model.sample import Document, Sample, Segment
from shardmill.shards import samples as samples_module
from shardmill.shards.samples import SampleDataset, max_open_shards, open_samples


def make_set(folder: Path, num: int = 23) -> list[Sample]:
    """Write samples to a folder, five a shard, and return them."""
    text = [Segment(kind="text", text=f"text {i}") for i in range(num)]
    image = Segment(kind="image", media="jpg")
    samples = [
        Sample(key=f"d/k{i}", document=Document((image, text[i])), media={"jpg": b"%d" % i})
        for i in range(num)
    ]
    store_samples(folder, samples, per_shard=5)
    return samples


def test_numbers_count_through_all_shards(tmp_path: Path) -> None:
    samples = make_set(tmp_path / "x")
    found = open_samples(tmp_path / "x")
    assert len(found) == 23
    assert [found[i] for i in range(23)] == samples == list(found)
    assert [found.key(i) for i in (0, 4, 5, 22)] == ["d/k0", "d/k4", "d/k5", "d/k22"]
    for number in (-1, 23):
        with pytest.raises(IndexError):
            found[number]


def test_keys_are_found_in_any_shard(tmp_path: Path) -> None:
    make_set(tmp_path / "x")
    found = open_samples(tmp_path / "x")
    assert found.find("d/k17") == 17
    assert found.find("k17") is None
    assert found.find_all(["d/k22", "no", "d/k0"]).tolist() == [22, -1, 0]


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "MAX_OPEN", 2)
    make_set(tmp_path / "x")
    found = open_samples(tmp_path / "x")
    raw = found.raw(0)
    for number in (5, 10, 0, 22, 11):
        assert bytes(found.raw(number)["jpg"]) == b"%d" % number
        assert len(found._open) <= 2
    assert list(found._open) == [4, 2]
    assert bytes(raw["jpg"]) == b"0"
    found.close()
    assert bytes(found.raw(7)["jpg"]) == b"7"


def test_it_travels_to_another_process(tmp_path: Path) -> None:
    samples = make_set(tmp_path / "x")
    found = open_samples(tmp_path / "x")
    assert found[3] == samples[3]
    other = pickle.loads(pickle.dumps(found))
    assert isinstance(other, SampleDataset)
    assert other[3] == samples[3]


def test_an_index_with_another_count_than_its_receipt_is_refused(tmp_path: Path) -> None:
    make_set(tmp_path / "x")
    shards = sorted((tmp_path / "x" / "shards").glob("*.idx"))
    shards[0].write_bytes(shards[-1].read_bytes())
    with pytest.raises(FormatError, match="its receipt says 5"):
        open_samples(tmp_path / "x").raw(0)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError):
        open_samples(tmp_path)


def test_some_shards_may_always_be_open() -> None:
    assert max_open_shards() >= 1
