"""Codes by key: in order, out of order, in another shard, or nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from coded_folder import codes_of, make_pair, make_text, store_coded

from shardmill.errors import ConfigError, Filtered, SampleError
from shardmill.shards import codejoin
from shardmill.shards.codejoin import join_codes

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
        assert image.codes.tolist() == codes_of(key, 2, 3).reshape(-1).tolist()
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
    monkeypatch.setattr(codejoin, "MAX_OPEN", 2)
    codes = join_codes(folders[1])
    for key in [*KEYS[:7], *reversed(KEYS[:7])]:
        assert len(codes.images(key, "elsewhere")) == 1
        assert len(codes._open) <= 2


def test_shards_are_known_by_name(folders: tuple[Path, Path]) -> None:
    codes = join_codes(folders[1])
    found = codes.shard("000008")
    assert found is not None and len(found) == 2
    assert codes.shard("x") is None
    with pytest.raises(ConfigError, match="holds no codes"):
        join_codes(folders[0])
