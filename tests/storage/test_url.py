"""Urls: which names are urls, their parts, and that no credential gets past."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.storage.url import REMOTE_SCHEMES, is_remote, plain_url, split_url

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
