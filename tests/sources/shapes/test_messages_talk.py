from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.messages import talk_pieces

QA = [{"i": "Look at it.", "q": "What is it?", "a": "A cat."}, {"q": "Where?", "a": "Outside."}]


def said(pieces: list[Any]) -> list[tuple[Any, ...]]:
    return [(p.turn, p.role, p.text if p.kind == "text" else p.media) for p in pieces]


def test_questions_become_turns_and_media_come_first() -> None:
    assert said(talk_pieces(QA, [], ["a.mp4", "b.mp4"])) == [
        (0, "user", "a.mp4"),
        (0, "user", "b.mp4"),
        (0, "user", "Look at it. What is it?"),
        (1, "assistant", "A cat."),
        (2, "user", "Where?"),
        (3, "assistant", "Outside."),
    ]


def test_placeholders_stay_where_they_are() -> None:
    turns = [{"from": "human", "value": "Is <image> like <image>?"}, {"from": "gpt", "value": "No"}]
    assert said(talk_pieces(turns, ["a", "b"], [])) == [
        (0, "user", "Is "),
        (0, "user", "a"),
        (0, "user", " like "),
        (0, "user", "b"),
        (0, "user", "?"),
        (1, "assistant", "No"),
    ]
    assert turns[0]["value"] == "Is <image> like <image>?"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "empty conversation"),
        ([], "empty conversation"),
        (["x"], "empty conversation"),
        ([{"q": "x", "a": None}], "missing field"),
        ([{"q": 3, "a": "x"}], "missing field"),
        ([{"q": "<video> and <video>", "a": "x"}], "placeholders and media do not match"),
        ([{"from": "nobody", "value": "x"}], "unknown role"),
    ],
)
def test_what_is_no_conversation_is_a_reject(value: Any, reason: str) -> None:
    with pytest.raises(SampleError) as error:
        talk_pieces(value, [], ["a.mp4"])
    assert error.value.reason == reason
