"""Local copies of small remote files: fetched once, never outdated, bounded, shared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from shardmill.errors import ConfigError, FormatError
from shardmill.shards.arrays import open_arrays, store_arrays
from shardmill.storage import cache, objects
from shardmill.storage.cache import (
    LIMIT_VARIABLE,
    LOG_NAME,
    SCRATCH_VARIABLE,
    StagedCopies,
    fetch_copies,
    local_copy,
    scratch_dir,
    scratch_root,
)
from shardmill.storage.path import as_path


def test_a_local_file_is_its_own_copy(tmp_path: Path) -> None:
    assert local_copy(tmp_path / "x") == tmp_path / "x"


def test_a_copy_is_made_once_and_anew_when_the_object_changes(store_url: str) -> None:
    path = as_path(f"{store_url}/a.idx")
    objects.put(str(path), b"one")
    first = local_copy(path)
    assert first.read_bytes() == b"one" and local_copy(path) == first
    inode = first.stat().st_ino
    assert local_copy(path).stat().st_ino == inode
    objects.put(str(path), b"two")
    assert local_copy(path).read_bytes() == b"two" and local_copy(path) != first


def test_the_oldest_copies_go_when_there_is_no_room(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "2500")
    paths = [as_path(f"{store_url}/{n}") for n in range(4)]
    for number, path in enumerate(paths):
        objects.put(str(path), bytes(1000))
        os.utime(local_copy(path), ns=(number, number))
    kept = [entry.name for entry in (scratch_root() / "cache").iterdir()]
    assert len(kept) == 2 and local_copy(paths[3]).name in kept
    objects.put(f"{store_url}/large", bytes(3000))
    with pytest.raises(ConfigError, match="3,000 bytes, local copies may have 2,500"):
        local_copy(as_path(f"{store_url}/large"))
    monkeypatch.setenv(LIMIT_VARIABLE, "lots")
    with pytest.raises(ConfigError, match="must be a number of bytes"):
        local_copy(as_path(f"{store_url}/large"))


def test_many_come_at_once_and_arrays_are_mapped(store_url: str, tmp_path: Path) -> None:
    paths = [as_path(f"{store_url}/{n}.bin") for n in range(5)]
    for number, path in enumerate(paths):
        store_arrays(path, "test", {"a": np.arange(number, dtype="<i8")}, {"n": number})
    fetch_copies([*paths, tmp_path / "local"])
    for number, path in enumerate(paths):
        arrays = open_arrays(path, "test")
        assert arrays["a"].tolist() == list(range(number)) and arrays.meta == {"n": number}


def test_what_is_not_there_is_named(store_url: str) -> None:
    with pytest.raises(FormatError, match=r"none\.idx: does not exist"):
        local_copy(as_path(f"{store_url}/none.idx"))


def test_a_copy_is_read_once_it_is_there(tmp_path: Path) -> None:
    copies = StagedCopies(tmp_path)
    assert copies.find("/far/x.tar", "shards/x.tar") == "/far/x.tar"
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "x.tar").touch()
    assert copies.find("/far/x.tar", "shards/x.tar") == str(tmp_path / "shards" / "x.tar")


def test_news_are_told_once_and_looked_for_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(cache.time, "monotonic", lambda: now[0])
    copies, log = StagedCopies(tmp_path), tmp_path / LOG_NAME
    assert not copies.has_news()
    log.write_text("a\n")
    assert not copies.has_news()
    now[0] += cache.LOOK_EVERY_S
    assert copies.has_news()
    now[0] += cache.LOOK_EVERY_S
    assert not copies.has_news()
    log.write_text("a\nb\n")
    now[0] += cache.LOOK_EVERY_S
    assert copies.has_news()


def test_a_named_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCRATCH_VARIABLE, str(tmp_path / "mine"))
    assert scratch_root() == tmp_path / "mine"


def test_otherwise_it_is_a_folder_of_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SCRATCH_VARIABLE, raising=False)
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = scratch_root()
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    assert scratch_root() == folder
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="not ours alone"):
        scratch_root()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not ours alone"):
        scratch_root()


def test_folders_of_a_store_have_rooms_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCRATCH_VARIABLE, str(tmp_path))
    rooms = {scratch_dir(f"s3://bucket/{name}") for name in ("a", "b", "a/b")}
    assert len(rooms) == 3 and scratch_dir("s3://bucket/a") in rooms
