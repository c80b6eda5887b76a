"""Urls as paths: names and joins are those of paths, the rest asks the store or refuses."""

from __future__ import annotations

import os
import pickle
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.model.codec import from_plain, to_plain
from shardmill.storage import objects
from shardmill.storage.path import UrlPath, as_path

NAMES = st.text("abc019-_ ", min_size=1, max_size=8).map(lambda name: f"x{name}.tar")


@given(st.lists(NAMES, min_size=1, max_size=4), NAMES)
def test_names_and_joins_are_those_of_paths(parts: list[str], more: str) -> None:
    url, path = as_path("/".join(["s3://bucket", *parts])), PurePosixPath("/b", *parts)
    assert isinstance(url, UrlPath)
    assert str(url / more) == f"{url}/{more}"
    assert (url / more).parent == url and hash((url / more).parent) == hash(url)
    assert (url.name, url.stem, url.suffix) == (path.name, path.stem, path.suffix)
    assert str(url.with_suffix(".idx")) == str(url).removesuffix(".tar") + ".idx"
    assert url.absolute() is url and url.is_absolute()


@given(st.lists(NAMES, min_size=1, max_size=3))
def test_it_travels_to_other_processes_and_through_specs(parts: list[str]) -> None:
    url = as_path("/".join(["s3://bucket", *parts]))
    assert pickle.loads(pickle.dumps(url)) == url
    assert isinstance(pickle.loads(pickle.dumps(url)), UrlPath)
    back = from_plain(to_plain(url), Path)
    assert isinstance(back, UrlPath) and str(back) == str(url)


def test_local_names_are_plain_paths() -> None:
    assert type(as_path("a/b")) is type(Path("a/b"))
    assert as_path("file:///a/b") == Path("/a/b")
    assert as_path(Path("a")) == Path("a")


def test_a_url_is_never_taken_for_a_local_file() -> None:
    url = as_path("s3://bucket/x")
    for use in (
        lambda: os.fspath(url),
        lambda: os.stat(url),
        lambda: url.rename("y"),
        lambda: url.touch(),
        lambda: url.write_bytes(b""),
        lambda: url.open("wb"),
    ):
        with pytest.raises(ConfigError, match="is a url"):
            use()


def test_a_store_is_listed_and_read_like_a_folder(store_url: str) -> None:
    root = as_path(store_url)
    for name in ("b.json", "a.json", "deep/er/c.json", "d.txt"):
        objects.put(f"{store_url}/{name}", name.encode())
    assert [path.name for path in root.iterdir()] == ["deep", "a.json", "b.json", "d.txt"]
    assert [path.name for path in root.glob("*.json")] == ["a.json", "b.json"]
    assert root.is_dir() and not root.is_file() and (root / "deep").exists()
    assert (root / "a.json").is_file() and not (root / "a.json").is_dir()
    assert not (root / "a").exists()
    assert (root / "a.json").read_bytes() == b"a.json" == (root / "a.json").read_text().encode()
    assert (root / "a.json").stat().st_size == 6
    (root / "a.json").unlink()
    (root / "a.json").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (root / "a.json").read_bytes()


def test_a_web_server_is_not_listed() -> None:
    with pytest.raises(ConfigError, match="name each file"):
        list(as_path("http://127.0.0.1:9/folder").iterdir())
