from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.model.codec import load_class
from shardmill.plugins import SOURCES
from shardmill.shards.tar.header import check_key
from shardmill.sources.part import Source, key_from_value, media_kind, name_from_path, unique


@pytest.mark.parametrize("kind", sorted(SOURCES))
def test_every_source_of_the_table_keeps_the_contract(kind: str) -> None:
    assert issubclass(load_class(SOURCES[kind]), Source)


def test_the_last_suffix_counts() -> None:
    assert media_kind("a.b.JPG") == "image"
    assert media_kind("0.mp4") == "video"
    assert media_kind("wav") == "audio"
    assert media_kind("a.jpg.txt") is None
    assert media_kind("README") is None


@given(st.lists(st.text(st.characters(exclude_characters="/"), min_size=1), min_size=1))
def test_any_path_gives_a_name_that_can_be_a_key(parts: list[str]) -> None:
    name = name_from_path("/".join(parts))
    if name:
        check_key(f"{name}-00000001")


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


@pytest.mark.parametrize("value", ["", "/a", "a//b", "a\n", "x" * 201, None, True, 1.5, ["a"]])
def test_a_bad_key_is_a_reject(value: object) -> None:
    with pytest.raises(SampleError):
        key_from_value(value)
