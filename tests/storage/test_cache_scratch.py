"""Local room for stores: where it is, and that nobody else can put something there."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.errors import ConfigError
from shardmill.storage import cache as scratch
from shardmill.storage.cache import VARIABLE, scratch_dir, scratch_root


def test_a_named_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    assert scratch_root() == tmp_path / "mine"


def test_otherwise_it_is_a_folder_of_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(tmp_path))
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
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    rooms = {scratch_dir(f"s3://bucket/{name}") for name in ("a", "b", "a/b")}
    assert len(rooms) == 3 and scratch_dir("s3://bucket/a") in rooms
