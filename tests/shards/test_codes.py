"""Code shards give back what was written, and refuse what does not fit together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from coded_folder import codes_of, make_pair, make_text, store_coded
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError, Filtered, FormatError, SampleError
from shardmill.shards import codes as codes_module
from shardmill.shards.arrays import open_arrays, write_arrays
from shardmill.shards.codes import (
    FORMAT,
    ImageCodes,
    code_dtype,
    join_codes,
    open_codes,
    write_codes,
)

grids = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1))


@given(
    samples=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9),
            st.lists(grids, max_size=3),
        ),
        max_size=8,
        unique_by=lambda sample: sample[0],
    ),
    num_codes=st.sampled_from([2, 256, 257, 8192, 65536, 65537]),
)
def test_codes_come_back_by_key(
    tmp_path_factory: pytest.TempPathFactory, samples: list, num_codes: int
) -> None:
    path = tmp_path_factory.mktemp("codes") / "a.codes"
    rows = [
        (
            key,
            [
                ImageCodes(
                    f"{i}.jpg",
                    np.random.default_rng(seed).integers(0, num_codes, (height, width)),
                )
                for i, (height, width, seed) in enumerate(images)
            ],
        )
        for key, images in samples
    ]
    write_codes(path, rows, num_codes=num_codes, factor=16)
    shard = open_codes(path)
    assert len(shard) == len(rows)
    assert shard.codes.dtype == code_dtype(num_codes)
    for key, images in rows:
        number = shard.find(key)
        assert number is not None
        found = shard.images(number)
        assert [image.medium for image in found] == [p.medium for p in images]
        assert all(np.array_equal(a.codes, b.codes) for a, b in zip(found, images))
    assert shard.find("nobody has this key") is None


def test_the_smallest_type_is_used() -> None:
    assert code_dtype(256) == np.uint8
    assert code_dtype(8192) == np.uint16
    assert code_dtype(65536) == np.uint16
    assert code_dtype(65537) == np.uint32


def write_one(path: Path) -> None:
    codes = np.arange(6).reshape(2, 3)
    write_codes(path, [("a", [ImageCodes("jpg", codes)])], num_codes=300, factor=16)


def test_the_same_codes_give_the_same_bytes(tmp_path: Path) -> None:
    write_one(tmp_path / "a")
    write_one(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start", np.array([0, 5], np.uint64)),
        ("first", np.array([0, 2], np.uint64)),
        ("medium", np.array([1], np.uint16)),
        ("height", np.array([3], np.uint16)),
        ("codes", np.arange(6, dtype=np.uint8)),
        ("hash_order", np.array([7], np.uint32)),
        ("hash", np.array([], np.uint64)),
    ],
)
def test_numbers_that_point_elsewhere_are_refused(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "a.codes"
    write_one(path)
    good = open_arrays(path, FORMAT)
    bad = {**{key: np.array(array) for key, array in good.items()}, name: value}
    with (tmp_path / "bad.codes").open("wb") as file:
        write_arrays(file, FORMAT, bad, good.meta)
    with pytest.raises(FormatError):
        open_codes(tmp_path / "bad.codes")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.codes"
    write_one(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FormatError):
        open_codes(path)


KEYS = [f"k{number}" for number in range(10)]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    samples = [make_text("text", "x"), *(make_pair(key, key) for key in KEYS)]
    return store_coded(tmp_path, samples, per_shard=4, size=(2, 3), without=["k7"])


@pytest.mark.parametrize("shard", ["000000", "000004", "elsewhere"])
def test_every_sample_is_found_in_any_order(folders: tuple[Path, Path], shard: str) -> None:
    codes = join_codes(folders[1])
    for key in [*KEYS[:7], *reversed(KEYS[:7]), KEYS[9], KEYS[0]]:
        (image,) = codes.images(key, shard)
        assert image.codes.tolist() == codes_of(key, 2, 3).tolist()
        assert (image.medium, image.width, image.height) == ("jpg", 48, 32)
    assert codes.images("text", shard) == []


def test_a_sample_without_codes_has_a_reason(folders: tuple[Path, Path]) -> None:
    with pytest.raises(SampleError, match="no image codes"):
        join_codes(folders[1]).images("k7", "000004")


@pytest.mark.parametrize("unit", ["000004", "000099"])
@pytest.mark.parametrize("filtered", [True, False])
def test_a_sample_that_codes_skipped_says_why_and_keeps_its_budget(
    folders: tuple[Path, Path], unit: str, filtered: bool
) -> None:
    reject = {"key": "k7", "reason": "too wide", "detail": "3:1", "filtered": filtered}
    (folders[1] / "rejects").mkdir()
    (folders[1] / "rejects" / f"{unit}.jsonl").write_text(json.dumps(reject) + "\n")
    with pytest.raises(SampleError, match=r"no image codes: too wide \(3:1\)") as caught:
        join_codes(folders[1]).images("k7", "000004")
    assert isinstance(caught.value, Filtered) == filtered
    assert len(join_codes(folders[1]).images("k6", unit)) == 1


def test_few_shards_are_open_at_a_time(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes_module, "MAX_OPEN", 2)
    codes = join_codes(folders[1])
    for key in [*KEYS[:7], *reversed(KEYS[:7])]:
        assert len(codes.images(key, "elsewhere")) == 1
        assert len(codes._open) <= 2


def test_a_folder_of_something_else_is_refused(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="holds no codes"):
        join_codes(folders[0])
