"""Both backends keep the same promises: whole files, one creator, drafts in their places."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardmill.errors import StoreError
from shardmill.storage.folder import (
    Backend,
    LocalBackend,
    StoreBackend,
    backend_of,
    list_names,
    list_sizes,
    read_all,
)
from shardmill.storage.path import as_path


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
