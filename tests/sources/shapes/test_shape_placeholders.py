from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardmill.sources.shapes.shape import count_placeholders, split_placeholders

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
