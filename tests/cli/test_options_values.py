"""Plugins and sizes as users type them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.cli.options import parse_plugin, parse_size, parse_spec
from shardmill.errors import ConfigError
from shardmill.model.space import TokenSpace


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("text", {"kind": "text"}),
        ("aspect_ratio,max_ratio=2", {"kind": "aspect_ratio", "max_ratio": 2}),
        ("my.module:Mine,a=b c,d=1.5", {"kind": "my.module:Mine", "a": "b c", "d": 1.5}),
        (
            'words,words=["a","b,c"],whole=true',
            {"kind": "words", "words": ["a", "b,c"], "whole": True},
        ),
        ('x,m={"a":1,"b":2},n=3', {"kind": "x", "m": {"a": 1, "b": 2}, "n": 3}),
        ("x,equation=a=b", {"kind": "x", "equation": "a=b"}),
    ],
)
def test_plugin(text: str, plain: dict[str, Any]) -> None:
    assert parse_plugin(text) == plain


def test_a_spec_has_the_fields_that_are_given() -> None:
    given = parse_spec('text_size=40,added=["a","b"]', TokenSpace, where="--space")
    assert given == TokenSpace(text_size=40, added=("a", "b"))
    with pytest.raises(ConfigError, match="--space has no field 'size'"):
        parse_spec("size=40", TokenSpace, where="--space")


def test_a_field_without_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected name=value"):
        parse_plugin("text_length,200")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("500MB", 500_000_000),
        ("1GiB", 1 << 30),
        ("1.5 kB", 1500),
        ("2M", 2_000_000),
    ],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@given(st.integers(0, 1 << 50))
def test_a_plain_number_is_itself(number: int) -> None:
    assert parse_size(str(number)) == number


@pytest.mark.parametrize("text", ["", "-5", "many", "5 PB", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)
