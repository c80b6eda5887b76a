"""Rows that ask in one column and answer in another."""

from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.model.codec import build
from shardmill.plugins import SHAPES
from shardmill.sources.shapes.instructions import InstructionShape, PointsShape
from shardmill.sources.shapes.shape import Shape


def told(kind: str, row: dict[str, Any], **options: Any) -> list[tuple[str | None, int, str]]:
    shape: Shape = build(SHAPES, {"kind": kind, **options})
    found = shape.shape(row).segments
    return [(s.role, s.turn, s.text if s.kind == "text" else f"<{s.media}>") for s in found]


def test_an_instruction_with_all_that_it_can_have() -> None:
    row = {
        "system": "Be brief.",
        "instruction": "<image>What is it?",
        "input": "Look well.",
        "output": "A cat.",
        "history": [["Hi.", "Hello."]],
        "images": ["a.jpg"],
    }
    assert told("instruction", row) == [
        ("system", 0, "Be brief."),
        ("user", 1, "Hi."),
        ("assistant", 2, "Hello."),
        ("user", 3, "<a.jpg>"),
        ("user", 3, "What is it?\nLook well."),
        ("assistant", 4, "A cat."),
    ]


def test_one_answer_of_several() -> None:
    row = {"question": "?", "answers": ["a", "b"], "image": "a.jpg"}
    with pytest.raises(SampleError, match="several"):
        told("instruction", row)
    assert told("instruction", row, several="first")[-1] == ("assistant", 1, "a")
    assert told("instruction", {**row, "answers": ["a", "a"]})[-1] == ("assistant", 1, "a")
    assert InstructionShape(several="first").shape(row).extra == {"answers": ["a", "b"]}


@pytest.mark.parametrize("history", [[["only"]], ["text"], [["a", 1]], [{"q": "a"}]])
def test_a_history_that_is_none(history: Any) -> None:
    with pytest.raises(SampleError, match="bad history"):
        told("instruction", {"instruction": "a", "output": "b", "history": history})


def test_a_chain_of_edits() -> None:
    row = {"image_list": ["a", "b", "c"], "instruction_list": [["one"], ["two"]]}
    assert told("edit", row) == [
        ("user", 0, "<a>"),
        ("user", 0, "one"),
        ("assistant", 1, "<b>"),
        ("user", 2, "two"),
        ("assistant", 3, "<c>"),
    ]
    with pytest.raises(SampleError, match="3 images, 1 edits"):
        told("edit", {**row, "instruction_list": [["one"]]})


def test_points_as_molmo_writes_them() -> None:
    row = {"image_url": "a", "label": "cup", "points": [{"x": 1.25, "y": 2}, {"x": 30, "y": 40.5}]}
    answer = told("points", row)[-1][2]
    assert answer == '<points x1="1.2" y1="2.0" x2="30.0" y2="40.5" alt="cup">cup</points>'
    assert PointsShape().shape(row).extra == {"points": row["points"]}
    assert told("points", {**row, "points": []})[-1][2] == "There are none."


def test_a_second_context_is_not_lost() -> None:
    row = {"instruction": "a", "input": "b", "context": "c", "output": "d"}
    shaped = InstructionShape().shape(row)
    assert shaped.extra == {"context": "c"} and "context" not in shaped.uses
