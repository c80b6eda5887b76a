"""Keys and extensions: what is allowed, and that names split where they were joined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tars import exts, keys

from shardmill.errors import SampleError
from shardmill.shards.tar.names import check_ext, check_key, member_name, split_name


@given(keys, exts)
def test_a_dotted_name_splits_into_what_it_was_made_of(key: str, ext: str) -> None:
    assert split_name(member_name(key, ext)) == (key, ext)


@given(keys, exts)
def test_dashed_names_differ_only_for_numbered_media(key: str, ext: str) -> None:
    dashed = member_name(key, ext, "dashed")
    assert dashed == (f"{key}-{ext}" if "." in ext else f"{key}.{ext}")


@pytest.mark.parametrize(
    "key",
    ["", "a.b", "/a", "a/", "a//b", "../a", "a/..", "a\nb", "a\0", "x" * 201, "é" * 101, "a\udc80"]
    + ["____", "__notes__", "__notes__/a"],
)
def test_a_bad_key_is_a_sample_error(key: str) -> None:
    with pytest.raises(SampleError):
        check_key(key)


@pytest.mark.parametrize(
    "key", ["a", "a/b/c", "x" * 200, "é" * 100, "a b", "0-1", "__a", "a/__b__"]
)
def test_a_good_key_passes(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize("ext", ["", ".", ".jpg", "jpg.", "a..b", "a/b", "a\tb", "x" * 101])
def test_a_bad_extension_is_a_sample_error(ext: str) -> None:
    with pytest.raises(SampleError):
        check_ext(ext)


@given(st.text(max_size=20))
def test_split_never_loses_a_character(name: str) -> None:
    key, ext = split_name(name)
    assert name in (key, f"{key}.{ext}")
    assert "/" not in ext
