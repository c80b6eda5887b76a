"""Whole files on disks and in stores: the old bytes or the new ones after a crash, one creator."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crash_states import TracingDisk

from shardmill.errors import StoreError
from shardmill.storage.files import (
    Backend,
    Disk,
    LocalBackend,
    StoreBackend,
    backend_of,
    link_or_copy,
    list_names,
    list_sizes,
    made_file,
    make_dirs,
    read_all,
    remove_files,
    write_file,
)
from shardmill.storage.path import as_path


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


@pytest.fixture(params=["local", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return an empty folder, on disk or in a store."""
    if request.param == "store":
        return as_path(request.getfixturevalue("store_url"))
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def drafts(tmp_path: Path) -> Path:
    (tmp_path / "drafts").mkdir()
    return tmp_path / "drafts"


@pytest.fixture
def backend(folder: Path, drafts: Path) -> Backend:
    return backend_of(folder, drafts)


def test_the_place_decides_the_kind(tmp_path: Path) -> None:
    assert isinstance(backend_of(tmp_path), LocalBackend)
    assert isinstance(backend_of(as_path("s3://bucket/x")), StoreBackend)


def test_a_put_replaces(backend: Backend, folder: Path) -> None:
    backend.put(folder / "a.json", b"1")
    backend.put(folder / "a.json", b"22")
    assert (folder / "a.json").read_bytes() == b"22"
    assert list_names(folder) == ["a.json"]


def test_one_of_many_creates(backend: Backend, folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: backend.create(folder / "lock", b"%d" % n), range(16)))
    assert won.count(True) == 1
    assert (folder / "lock").read_bytes() == b"%d" % won.index(True)


def test_only_its_owner_renews_a_file(backend: Backend, folder: Path) -> None:
    backend.create(folder / "lock", b"me 1")
    assert backend.renew(folder / "lock", lambda content: content.startswith(b"me"), b"me 2")
    assert not backend.renew(folder / "lock", lambda content: content.startswith(b"you"), b"you1")
    assert (folder / "lock").read_bytes() == b"me 2"
    with pytest.raises(FileNotFoundError):
        backend.renew(folder / "none", lambda content: True, b"")


def test_drafts_move_and_receipts_follow(backend: Backend, folder: Path, drafts: Path) -> None:
    for name in ("shards", "receipts"):
        backend.make_folder(folder / name)
    moves = [(drafts / f"{n}.tar", folder / "shards" / f"{n}.tar") for n in range(5)]
    for source, target in moves:
        source.write_bytes(target.name.encode())
    backend.sync([source for source, _ in moves])
    backend.move(moves)
    backend.write_receipts([(folder / "receipts" / f"{n}.json", b"%d" % n) for n in range(5)])
    assert list(drafts.iterdir()) == []
    assert [target.read_bytes() for _, target in moves] == [t.name.encode() for _, t in moves]
    assert list_names(folder / "receipts") == [f"{n}.json" for n in range(5)]


def test_removing_does_not_mind_what_is_gone(backend: Backend, folder: Path) -> None:
    backend.put(folder / "a", b"")
    backend.put(folder / "b", b"")
    backend.remove([folder / "a", folder / "none"])
    backend.discard([folder / "b", folder / "none"])
    assert list_names(folder) == []


def test_a_receipt_that_another_run_wrote_otherwise_is_withdrawn(store_url: str) -> None:
    path, backend = as_path(store_url) / "receipts" / "0.json", StoreBackend()
    backend.write_receipts([(path, b"same")])
    backend.write_receipts([(path, b"same")])
    with pytest.raises(StoreError, match="two runs wrote"):
        backend.write_receipts([(path, b"other")])
    assert not path.exists()


@pytest.fixture
def filled(folder: Path, backend: Backend) -> Path:
    """Return a folder with files of 0 to 9 bytes and a folder in it."""
    backend.make_folder(folder / "deep")
    for number in range(10):
        backend.put(folder / f"{number}.json", b"x" * number)
    backend.put(folder / "deep" / "y", b"y")
    return folder


def test_files_have_names_and_sizes(filled: Path) -> None:
    files = {f"{number}.json": number for number in range(10)}
    assert {n: s for n, s in list_sizes(filled).items() if n != "deep"} == files
    assert [name for name in list_names(filled) if name != "deep"] == sorted(files)


def test_a_folder_that_is_not_there_is_empty(filled: Path) -> None:
    assert list_sizes(filled / "none") == {} and list_names(filled / "none") == []


def test_contents_come_in_order_and_none_for_what_is_gone(filled: Path) -> None:
    names = ["3.json", "gone", "0.json", "9.json"]
    assert list(read_all(filled, names)) == [b"xxx", None, b"", b"x" * 9]
    assert list(read_all(filled, [])) == []
