"""Local copies of small remote files: fetched once, never outdated, bounded, shared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from shardmill.errors import ConfigError, FormatError
from shardmill.shards.arrays import open_arrays, store_arrays
from shardmill.storage import objects
from shardmill.storage.cache import LIMIT_VARIABLE, bring_near, near, scratch_root
from shardmill.storage.path import as_path


def test_a_local_file_is_near_already(tmp_path: Path) -> None:
    assert near(tmp_path / "x") == tmp_path / "x"


def test_a_copy_is_made_once_and_anew_when_the_object_changes(store_url: str) -> None:
    path = as_path(f"{store_url}/a.idx")
    objects.put(str(path), b"one")
    first = near(path)
    assert first.read_bytes() == b"one" and near(path) == first
    inode = first.stat().st_ino
    assert near(path).stat().st_ino == inode
    objects.put(str(path), b"two")
    assert near(path).read_bytes() == b"two" and near(path) != first


def test_the_oldest_copies_go_when_there_is_no_room(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "2500")
    paths = [as_path(f"{store_url}/{n}") for n in range(4)]
    for number, path in enumerate(paths):
        objects.put(str(path), bytes(1000))
        os.utime(near(path), ns=(number, number))
    kept = [entry.name for entry in (scratch_root() / "cache").iterdir()]
    assert len(kept) == 2 and near(paths[3]).name in kept
    objects.put(f"{store_url}/large", bytes(3000))
    with pytest.raises(ConfigError, match="3,000 bytes, local copies may have 2,500"):
        near(as_path(f"{store_url}/large"))
    monkeypatch.setenv(LIMIT_VARIABLE, "lots")
    with pytest.raises(ConfigError, match="must be a number of bytes"):
        near(as_path(f"{store_url}/large"))


def test_many_come_at_once_and_arrays_are_mapped(store_url: str, tmp_path: Path) -> None:
    paths = [as_path(f"{store_url}/{n}.bin") for n in range(5)]
    for number, path in enumerate(paths):
        store_arrays(path, "test", {"a": np.arange(number, dtype="<i8")}, {"n": number})
    bring_near([*paths, tmp_path / "local"])
    for number, path in enumerate(paths):
        arrays = open_arrays(path, "test")
        assert arrays["a"].tolist() == list(range(number)) and arrays.meta == {"n": number}


def test_what_is_not_there_is_named(store_url: str) -> None:
    with pytest.raises(FormatError, match=r"none\.idx: does not exist"):
        near(as_path(f"{store_url}/none.idx"))
