from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import (
    count_placeholders,
    first_of,
    is_missing,
    media_list,
    split_placeholders,
    text_of,
    unused,
)


def test_zero_and_false_are_something() -> None:
    assert not is_missing(0)
    assert not is_missing(False)
    assert all(map(is_missing, (None, "", [], {}, b"")))


def test_fields_are_looked_up_in_order() -> None:
    fields = {"a": "", "b": "x", "c": ["y", "z"]}
    assert first_of(fields, ("a", "b", "c")) == "b"
    assert media_list(fields, ("a", "c")) == (["y", "z"], {"c"})
    assert media_list(fields, ("a", "d")) == ([], {"a"})
    assert unused(fields, {"a", "c"}) == {"b": "x"}


def test_text_must_be_text() -> None:
    with pytest.raises(SampleError, match="field 'a' is a int"):
        text_of({"a": 5}, "a")


texts = st.lists(st.sampled_from(["<image>", "<VIDEO>", "a", " ", "\n", "<", "image>", "<b>"]))


@given(texts)
def test_nothing_but_white_space_is_lost(parts: list[str]) -> None:
    text = "".join(parts)
    found = list(split_placeholders(text))
    again = "".join(f"<{words}>" if kind == "medium" else words for kind, words in found)
    assert "".join(again.lower().split()) == "".join(text.lower().split())
    assert sum(kind == "medium" for kind, _ in found) == count_placeholders(text)


def test_line_breaks_next_to_a_placeholder_are_left_out() -> None:
    assert list(split_placeholders("Look:\n<image>\n\nWhat is\nit? ")) == [
        ("text", "Look:"),
        ("medium", "image"),
        ("text", "What is\nit? "),
    ]
    assert list(split_placeholders("<image> <image>")) == [("medium", "image")] * 2
    assert list(split_placeholders("\nplain\n")) == [("text", "\nplain\n")]
