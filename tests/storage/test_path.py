"""Names: which are urls, that no credential gets past, and that urls read like paths."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError, FormatError
from shardmill.model.codec import from_plain, to_plain
from shardmill.storage import objects
from shardmill.storage import path as paths
from shardmill.storage.blob import open_blob
from shardmill.storage.path import (
    REMOTE_SCHEMES,
    Home,
    UrlPath,
    absolute,
    as_path,
    expand,
    expand_braces,
    is_remote,
    plain_url,
    split_url,
)

WORDS = st.text("abc019-_.", min_size=1, max_size=8).filter(lambda word: word.strip("."))


@given(st.sampled_from(REMOTE_SCHEMES), WORDS, st.lists(WORDS, max_size=4))
def test_root_and_path_make_the_url_again(scheme: str, host: str, parts: list[str]) -> None:
    url = "/".join([f"{scheme}://{host}", *parts])
    place = split_url(url)
    assert is_remote(url)
    assert place.scheme == scheme
    assert f"{place.root}/{place.path}".rstrip("/") == url


def test_paths_are_not_urls() -> None:
    assert not is_remote("data/x.tar") and not is_remote("/a:b/c") and not is_remote("file:///x")


def test_pipes_and_unknown_schemes_are_refused() -> None:
    with pytest.raises(ConfigError, match="would run a command"):
        is_remote("pipe:curl http://x")
    with pytest.raises(ConfigError, match="use a path, file:// or one of s3"):
        is_remote("ftp://host/x")


def test_a_url_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError) as caught:
        split_url("https://me:hunter2@host/x.tar")
    assert "hunter2" not in str(caught.value) and "environment" in str(caught.value)


def test_a_url_without_a_bucket_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no bucket"):
        split_url("s3:///x")


@given(WORDS, st.text("abcXYZ019=&", max_size=20))
def test_messages_say_a_url_without_its_secrets(name: str, secret: str) -> None:
    said = plain_url(f"https://user:{secret}pw@host/{name}.jpg?X-Amz-Signature={secret}zz")
    assert said == f"https://host/{name}.jpg"


def test_escapes_in_web_urls_are_what_they_stand_for() -> None:
    assert split_url("http://host/a%20b.tar").path == "a b.tar"
    assert split_url("s3://bucket/a%20b.tar").path == "a%20b.tar"


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


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("x.tar", ["x.tar"]),
        ("x-{0000..0003}.tar", ["x-0000.tar", "x-0001.tar", "x-0002.tar", "x-0003.tar"]),
        ("{9..11}", ["9", "10", "11"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{0..6..3}", ["0", "3", "6"]),
        ("{a,b{1..2},}x", ["ax", "b1x", "b2x", "x"]),
        ("s3://b/{1..2}/{a,b}.tar", [f"s3://b/{n}/{c}.tar" for n in "12" for c in "ab"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert list(expand_braces(pattern)) == names


parts = st.recursive(
    st.sampled_from(["a", "b", "{1..3}", "{01..10..3}", "{5..2}"]),
    lambda inner: st.lists(inner, min_size=2, max_size=3).map(lambda x: "{" + ",".join(x) + "}"),
    max_leaves=6,
)


@given(st.lists(parts, min_size=1, max_size=3).map("".join))
def test_braces_as_bash_spells_them_out(pattern: str) -> None:
    bash = subprocess.run(["bash", "-c", f"echo {pattern}"], capture_output=True, check=True)
    assert list(expand_braces(pattern)) == bash.stdout.decode().split()


@pytest.mark.parametrize("pattern", ["{1..2", "{x}", "{1..}", "{1..5..0}", "{}"])
def test_bad_braces_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError):
        expand(pattern)


def test_a_pattern_that_names_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "MAX_NAMES", 1000)
    assert len(expand("{1..1000}")) == 1000
    with pytest.raises(ConfigError, match="more than"):
        expand("{1..99999999999}")


def test_globs_are_sorted_and_need_a_file(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "c.txt", "d/e.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [Path(p).name for p in expand(f"{tmp_path}/*.tar")] == ["a.tar", "b.tar"]
    assert len(expand(f"{tmp_path}/**/*.tar")) == 3
    assert len(expand(f"{tmp_path}/{{a,c}}.*")) == 2
    with pytest.raises(ConfigError, match=r"no file matches '.*/\*\.zip'$"):
        expand(f"{tmp_path}/*.zip")
    (tmp_path / "d" / "f").mkdir()
    (tmp_path / "d" / "f" / "g.zip").touch()
    with pytest.raises(ConfigError, match=r"but .*/d/f/g.zip is below: write '.*/\*\*/\*\.zip'$"):
        expand(f"{tmp_path}/*.zip")


def test_a_file_with_braces_in_its_name_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "x{1}[2].tar"
    path.touch()
    assert expand(str(path)) == [str(path)]


def test_what_is_remote() -> None:
    assert is_remote("s3://b/x.tar")
    assert is_remote("https://h/x.tar")
    assert not is_remote("/a/b.tar")
    assert not is_remote("file:///a/b.tar")
    for url in ("ftp://h/x.tar", "pipe:cat x.tar"):
        with pytest.raises(ConfigError):
            is_remote(url)


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no\.tar.*cannot be opened: No such file"):
        open_blob(str(tmp_path / "no.tar"))


def test_file_urls_are_files(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert open_blob(f"file://{tmp_path}/x").read(1, 2) == b"bc"


def test_what_is_no_url_is_refused_and_not_quoted() -> None:
    broken = "https://user:secret@[::1/x?key=secret"
    assert paths.plain_url(broken) == "https://..."
    with pytest.raises(ConfigError, match=r"^https://\.\.\. is not a url"):
        paths.split_url(broken)
    with pytest.raises(ConfigError, match="cannot be the name"):
        paths.check_name("\udcf9" * 100)


NAME = st.text("abc", min_size=1, max_size=3)


@given(st.lists(NAME, min_size=1, max_size=4), st.lists(NAME, min_size=1, max_size=4))
def test_a_place_is_found_again_from_wherever_its_folder_went(
    folder: list[str], place: list[str]
) -> None:
    for top, new in (("/top/old", "/top/new/deep"), ("s3://bucket/old", "s3://bucket/x/y")):
        home, there = Home(as_path(f"{top}/{'/'.join(folder)}")), f"{top}/{'/'.join(place)}"
        stored = home.relative(there)
        assert home.locate(stored) == there and top not in stored
        moved = Home(as_path(f"{new}/{'/'.join(folder)}"))
        assert moved.locate(stored) == f"{new}/{'/'.join(place)}"


@pytest.mark.parametrize(
    ("folder", "place"),
    [
        ("/data/out", "/other/rows.jsonl"),  # nothing in common but the root
        ("/out", "/rows.jsonl"),
        ("/data/out", "s3://bucket/rows.jsonl"),
        ("s3://bucket/out", "s3://another/rows.jsonl"),
        ("s3://bucket/out", "/data/rows.jsonl"),
    ],
)
def test_a_place_that_does_not_move_along_stays_whole(folder: str, place: str) -> None:
    home = Home(as_path(folder))
    assert home.relative(place) == home.locate(place) == place


def test_links_above_a_folder_change_no_stored_place(tmp_path: Path) -> None:
    for name in ("real/project/raw", "real/project/out", "far"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/project")
    (tmp_path / "real/project/linked").symlink_to(tmp_path / "far")
    for top in ("real/project", "link"):
        home = Home(tmp_path / top / "out")
        for other in ("real/project", "link"):
            assert home.relative(f"{tmp_path}/{other}/raw/a.jsonl") == "../raw/a.jsonl"
            # A link of the project itself stays: it may lead elsewhere after a move.
            assert home.relative(f"{tmp_path}/{other}/linked/b") == "../linked/b"
        assert home.locate("../raw/a.jsonl") == f"{tmp_path}/real/project/raw/a.jsonl"


def test_no_stored_place_leaves_its_bucket() -> None:
    with pytest.raises(FormatError, match="outside of s3://bucket"):
        Home(as_path("s3://bucket/a/out")).locate("../../../secret/x")


def test_places_are_typed_in_many_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    monkeypatch.chdir(tmp_path / "a")
    monkeypatch.setenv("HOME", str(tmp_path))
    for typed in ("b", "./b", "b/", "../a/b", "~/a/b", f"file://{tmp_path}/a/b", "../link"):
        assert absolute(typed) == f"{tmp_path}/a/b", typed
    assert absolute("../link/../x") == f"{tmp_path}/a/x"  # as the system sees it
    assert absolute("*.jsonl") == f"{tmp_path}/a/*.jsonl"
    assert absolute("s3://bucket/x/") == "s3://bucket/x"


def test_a_text_names_paths_as_seen() -> None:
    home = Home(Path("/data/project/raw"))
    said = "/data/project/raw/a.jpg is not below '/data/project': see /data-2/x, /old/data/x, /etc"
    seen = "a.jpg is not below '..': see /data-2/x, /old/data/x, /etc"
    assert home.seen(said) == seen
