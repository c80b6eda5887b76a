"""Listing and reading many small files: the same on disk and in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.storage.folder import depot_of, list_names, list_sizes, read_all
from shardmill.storage.path import as_path


@pytest.fixture(params=["local", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with files of 0 to 9 bytes and a folder in it."""
    store = request.param == "store"
    folder = as_path(request.getfixturevalue("store_url")) if store else tmp_path / "out"
    depot = depot_of(folder)
    depot.make_folder(folder / "deep")
    for number in range(10):
        depot.put(folder / f"{number}.json", b"x" * number)
    depot.put(folder / "deep" / "y", b"y")
    return folder


def test_files_have_names_and_sizes(folder: Path) -> None:
    files = {f"{number}.json": number for number in range(10)}
    assert {n: s for n, s in list_sizes(folder).items() if n != "deep"} == files
    assert [name for name in list_names(folder) if name != "deep"] == sorted(files)


def test_a_folder_that_is_not_there_is_empty(folder: Path) -> None:
    assert list_sizes(folder / "none") == {} and list_names(folder / "none") == []


def test_contents_come_in_order_and_none_for_what_is_gone(folder: Path) -> None:
    names = ["3.json", "gone", "0.json", "9.json"]
    assert list(read_all(folder, names)) == [b"xxx", None, b"", b"x" * 9]
    assert list(read_all(folder, [])) == []
