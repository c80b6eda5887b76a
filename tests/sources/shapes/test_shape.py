from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import (
    RowSegment,
    clip_in,
    clip_of,
    count_placeholders,
    first_of,
    in_clip,
    is_missing,
    media_list,
    seconds_of,
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


@given(st.integers(0, 10**9))
def test_a_clock_and_its_seconds_are_the_same_time(milliseconds: int) -> None:
    seconds, rest = divmod(milliseconds, 1000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:03d}"
    assert seconds_of(clock) == pytest.approx(milliseconds / 1000)
    assert seconds_of(milliseconds / 1000) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    "value", ["", "soon", None, True, [], "1:x", -1, "-3", "inf", float("nan")]
)
def test_what_is_no_time_is_a_reject(value: Any) -> None:
    with pytest.raises(SampleError, match="bad time"):
        seconds_of(value)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, None),
        ({"clip": None, "start": 1}, None),
        ({"clip": [1, "00:02.5"]}, (1.0, 2.5)),
        ({"start": 0, "end": 3}, (0.0, 3.0)),
    ],
)
def test_a_row_names_its_clip(row: dict[str, Any], expected: Any) -> None:
    assert clip_in(row, "clip", "start", "end") == expected


@pytest.mark.parametrize("row", [{"clip": 3}, {"clip": [1]}, {"clip": [2, 2]}, {"clip": [5, 1]}])
def test_a_clip_that_cannot_be_is_a_reject(row: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match="bad clip"):
        clip_in(row, "clip", "start", "end")


def test_only_videos_get_the_clip() -> None:
    video, text = RowSegment(kind="video", media="a.mp4"), RowSegment(kind="text", text="x")
    clipped = in_clip([video, text], clip_of(1, 2))
    assert [segment.time_s for segment in clipped] == [(1.0, 2.0), None]
    assert in_clip([video], None) == [video]
