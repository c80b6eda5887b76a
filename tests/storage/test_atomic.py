"""What survives a crash: the old bytes or the new ones, never a part, never nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from crash_states import TracingDisk

from shardmill.storage.atomic import (
    Disk,
    link_or_copy,
    made_file,
    make_dirs,
    remove_files,
    write_file,
)


def replaced_file_states(folder: Path, skip: frozenset[str]) -> set[bytes | None]:
    path = folder / "page"
    disk = TracingDisk()
    write_file(path, b"old page", disk=disk)
    disk.moments.clear()
    disk.skip = skip
    write_file(path, b"new page!", disk=disk)
    return {content for moment in disk.moments for content in moment.possible(path)}


def test_a_replaced_file_is_old_or_new_after_any_crash(tmp_path: Path) -> None:
    assert replaced_file_states(tmp_path, frozenset()) == {b"old page", b"new page!"}


def test_the_model_notices_a_missing_fsync(tmp_path: Path) -> None:
    assert b"" in replaced_file_states(tmp_path, frozenset({"sync_file"}))


def test_a_written_file_is_there_after_a_crash(tmp_path: Path) -> None:
    disk = TracingDisk()
    write_file(tmp_path / "page", b"bytes", disk=disk)
    assert set(disk.moments[-1].possible(tmp_path / "page")) == {b"bytes"}


def test_a_removed_file_does_not_come_back(tmp_path: Path) -> None:
    disk = TracingDisk()
    write_file(tmp_path / "page", b"bytes", disk=disk)
    remove_files([tmp_path / "page", tmp_path / "never there"], disk=disk)
    assert set(disk.moments[-1].possible(tmp_path / "page")) == {None}


def test_new_folders_are_synced_into_their_parents(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Noting(Disk):
        def sync_dir(self, path: Path) -> None:
            synced.append(path)

    make_dirs(tmp_path / "a" / "b", disk=Noting())
    assert synced == [tmp_path, tmp_path / "a"]


def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    class Full(Disk):
        def sync_file(self, path: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    write_file(tmp_path / "page", b"old")
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "page", b"new", disk=Full())
    assert [path.name for path in tmp_path.iterdir()] == ["page"]
    assert (tmp_path / "page").read_bytes() == b"old"


def test_whoever_cannot_make_a_file_leaves_no_litter(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(KeyError), made_file(tmp_path / "a") as draft_path:
        draft_path.write_bytes(b"half")
        raise KeyError("mine")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_file_is_copied_where_it_cannot_be_linked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").samefile(tmp_path / "a")
    other = Path("/dev/shm") / f"shardmill-{tmp_path.name}"
    if Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    try:
        link_or_copy(tmp_path / "a", other)
        assert other.read_text() == "content"
    finally:
        other.unlink(missing_ok=True)
