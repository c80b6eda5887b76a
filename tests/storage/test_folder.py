"""Both depots keep the same promises: whole files, one creator, drafts in their places."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardmill.errors import StoreError
from shardmill.storage.folder import Depot, LocalDepot, StoreDepot, depot_of, list_names
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
def depot(folder: Path, drafts: Path) -> Depot:
    return depot_of(folder, drafts)


def test_the_place_decides_the_kind(tmp_path: Path) -> None:
    assert isinstance(depot_of(tmp_path), LocalDepot)
    assert isinstance(depot_of(as_path("s3://bucket/x")), StoreDepot)


def test_a_put_replaces(depot: Depot, folder: Path) -> None:
    depot.put(folder / "a.json", b"1")
    depot.put(folder / "a.json", b"22")
    assert (folder / "a.json").read_bytes() == b"22"
    assert list_names(folder) == ["a.json"]


def test_one_of_many_creates(depot: Depot, folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: depot.create(folder / "lock", b"%d" % n), range(16)))
    assert won.count(True) == 1
    assert (folder / "lock").read_bytes() == b"%d" % won.index(True)


def test_only_its_owner_renews_a_file(depot: Depot, folder: Path) -> None:
    depot.create(folder / "lock", b"me 1")
    assert depot.renew(folder / "lock", lambda content: content.startswith(b"me"), b"me 2")
    assert not depot.renew(folder / "lock", lambda content: content.startswith(b"you"), b"you1")
    assert (folder / "lock").read_bytes() == b"me 2"
    with pytest.raises(FileNotFoundError):
        depot.renew(folder / "none", lambda content: True, b"")


def test_drafts_move_and_receipts_follow(depot: Depot, folder: Path, drafts: Path) -> None:
    for name in ("shards", "receipts"):
        depot.make_folder(folder / name)
    moves = [(drafts / f"{n}.tar", folder / "shards" / f"{n}.tar") for n in range(5)]
    for source, target in moves:
        source.write_bytes(target.name.encode())
    depot.settle([source for source, _ in moves])
    depot.move(moves)
    depot.vouch([(folder / "receipts" / f"{n}.json", b"%d" % n) for n in range(5)])
    assert list(drafts.iterdir()) == []
    assert [target.read_bytes() for _, target in moves] == [t.name.encode() for _, t in moves]
    assert list_names(folder / "receipts") == [f"{n}.json" for n in range(5)]


def test_removing_does_not_mind_what_is_gone(depot: Depot, folder: Path) -> None:
    depot.put(folder / "a", b"")
    depot.put(folder / "b", b"")
    depot.remove([folder / "a", folder / "none"])
    depot.drop([folder / "b", folder / "none"])
    assert list_names(folder) == []


def test_a_receipt_that_another_run_wrote_otherwise_is_withdrawn(store_url: str) -> None:
    path, depot = as_path(store_url) / "receipts" / "0.json", StoreDepot()
    depot.vouch([(path, b"same")])
    depot.vouch([(path, b"same")])
    with pytest.raises(StoreError, match="two runs wrote"):
        depot.vouch([(path, b"other")])
    assert not path.exists()
