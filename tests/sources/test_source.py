from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.codec import load_class
from shardmill.model.sample import Origin
from shardmill.model.tokenrow import sample_key
from shardmill.plugins import SOURCES
from shardmill.shards.tar.header import check_key
from shardmill.sources import source
from shardmill.sources.source import (
    Row,
    Source,
    few_rows,
    fingerprint,
    key_from_value,
    list_files,
    media_kind,
    name_from_path,
    unique,
    walk,
)


@pytest.mark.parametrize("kind", sorted(SOURCES))
def test_every_source_of_the_table_keeps_the_contract(kind: str) -> None:
    assert issubclass(load_class(SOURCES[kind]), Source)


def test_a_look_at_the_few_rows_takes_no_more_memory_than_one_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "MAX_LOOK_BYTES", 100)
    origin = Origin(source="s", path="p", row=0)
    rows = [Row(key=f"{n}", origin=origin, fields={"text": "x" * 40, "n": n}) for n in range(9)]
    assert [row.key for row in few_rows(iter(rows), 9)] == ["0", "1", "2"]
    assert len(few_rows(iter(rows), 2)) == 2 and few_rows([], 2) == []


def test_the_last_suffix_counts() -> None:
    assert media_kind("a.b.JPG") == "image"
    assert media_kind("0.mp4") == "video"
    assert media_kind("wav") == "audio"
    assert media_kind("a.jpg.txt") is None
    assert media_kind("README") is None


PATHS = st.lists(st.text("_.~+1x-\\" + "é\ud800\n\x85") | st.text()).map("/".join)


@given(PATHS)
@example("__init__")
@example(".name.")
@example("_./..x")
@example("____")
@example("/")
def test_any_path_gives_a_name_that_is_a_key_with_and_without_a_number(path: str) -> None:
    name = name_from_path(path)
    taken = {name}
    for key in (name, unique(name, taken), f"{unique(name, taken)}-00000001-001-x12"):
        check_key(key)
        assert sample_key(key) == key  # no row of tokens has this name
    check_key(name_from_path(f"{name}/{name}"))


def test_names_stay_readable() -> None:
    assert name_from_path("./a.b/c_1") == "a_b/c_1"
    assert name_from_path("../up") == "__/up"
    assert name_from_path("__pycache__/a") == "_pycache__/a"
    assert len(name_from_path("x" * 500)) < 200
    assert name_from_path("x" * 500) != name_from_path("x" * 501)


@given(st.lists(st.sampled_from(["a", "a~2", "b"])))
def test_unique_names_are_unique(names: list[str]) -> None:
    taken: set[str] = set()
    assert len({unique(name, taken) for name in names}) == len(names)


def test_a_users_key_changes_in_its_dots_only() -> None:
    assert key_from_value("a/b.jpg") == "a/b_jpg"
    assert key_from_value(17) == "17"


@pytest.mark.parametrize(
    "value", ["", "a~+1", "/a", "a//b", "a\n", "x" * 201, None, True, 1.5, ["a"]]
)
def test_a_bad_key_is_a_reject(value: object) -> None:
    with pytest.raises(SampleError):
        key_from_value(value)


def wanted(name: str) -> str | None:
    return name[:-2] if name.endswith(".x") else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.x", "a.x", "sub/a.x", "sub/deep/c.d.x", "sub/c_d.x", "other.y", ".hidden/h.x"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path / "in"


def names(*inputs: object) -> list[str]:
    return [listed.name for listed in list_files([str(i) for i in inputs], wanted)]


def test_a_folder_is_listed_by_name_whatever_the_filesystem_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ["a", "b", "sub/a", "sub/c_d", "sub/deep/c_d"]
    assert names(folder) == expected
    scandir = os.scandir

    class Backwards(list):  # type: ignore[type-arg]
        def __enter__(self) -> Backwards:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", lambda path: Backwards(reversed(list(scandir(path)))))
    assert names(folder) == expected


def test_globs_and_braces_name_files(folder: Path) -> None:
    assert names(folder / "*.x") == ["a", "b"]
    assert names(folder / "**/a.x") == ["a", "sub/a"]
    assert names(folder / "{b,a}.x", folder / "sub") == ["b", "a", "a~2", "c_d", "deep/c_d"]


def test_a_file_that_is_named_twice_is_refused(folder: Path) -> None:
    (folder.parent / "link.x").symlink_to(folder / "a.x")
    for more in ("a.x", "./a.x", "*.x", "sub/../a.x", "../link.x", ""):
        with pytest.raises(ConfigError, match=r"a.x is named twice|link.x is named twice"):
            names(folder / "a.x", f"{folder}/{more}")


def test_names_of_different_files_differ(folder: Path) -> None:
    assert names(folder / "a.x", folder / "sub/a.x") == ["a", "a~2"]
    assert len(set(names(folder / "sub/deep/c.d.x", folder / "sub/c_d.x"))) == 2


def test_a_named_file_needs_no_known_suffix(folder: Path) -> None:
    assert names(folder / "other.y") == ["other"]


@pytest.mark.parametrize("missing", ["gone.x", "gone-{0..3}.x", "gone*.x"])
def test_what_does_not_exist_is_an_error(folder: Path, missing: str) -> None:
    with pytest.raises(ConfigError, match="gone"):
        names(folder / missing)


def test_each_folder_is_walked_once_whatever_links_to_it(folder: Path) -> None:
    (folder / "sub" / "loop").symlink_to(folder)
    (folder / "linked").symlink_to(folder / "sub" / "deep")
    assert names(folder) == ["a", "b", "linked/c_d", "sub/a", "sub/c_d"]


def test_folders_that_link_to_each_other_are_listed_at_once(tmp_path: Path) -> None:
    for one in range(12):
        (tmp_path / f"{one:02d}").mkdir()
        (tmp_path / f"{one:02d}" / "a.x").write_text("")
    for one in range(12):
        for other in range(12):
            (tmp_path / f"{one:02d}" / f"to-{other:02d}").symlink_to(tmp_path / f"{other:02d}")
    assert len(list(walk(tmp_path))) == 13  # of 12! ways
    assert len(names(tmp_path)) == 12


@pytest.mark.parametrize("is_named", [True, False])
def test_a_pipe_among_the_files_is_an_error_that_names_it(folder: Path, is_named: bool) -> None:
    os.mkfifo(folder / "pipe.x")
    with pytest.raises(FormatError, match=r"pipe\.x: is no regular file"):
        names(folder / "pipe.x" if is_named else folder)


def test_a_folder_that_cannot_be_listed_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "deep":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(FormatError, match="deep: cannot be listed: Permission denied"):
        list(walk(folder))


def test_a_fingerprint_sees_size_and_time(folder: Path) -> None:
    path = folder / "a.x"
    before = fingerprint([path])
    path.write_text("more")
    assert fingerprint([path]) != before
    with pytest.raises(FormatError, match="cannot be looked at"):
        fingerprint([folder / "gone"])
