from __future__ import annotations

from typing import Any

from shardmill.sources.shapes.messages import LlavaShape
from shardmill.sources.shapes.shape import Shaped


def said(shaped: Shaped) -> list[tuple[Any, ...]]:
    return [
        (p.turn, p.role, p.text if p.kind == "text" else (p.kind, p.media)) for p in shaped.pieces
    ]


def test_llava_rows() -> None:
    turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."}]
    for image in ("a.jpg", ["a.jpg"], {"bytes": b"x", "path": None}):
        shaped = LlavaShape().shape({"id": "7", "image": image, "conversations": turns})
        (first,) = image if isinstance(image, list) else [image]
        assert said(shaped) == [
            (0, "user", ("image", first)),
            (0, "user", "What?"),
            (1, "assistant", "A cat."),
        ]
        assert shaped.extra == {"id": "7"}


def test_cambrian_rows_may_have_no_image() -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    for image in (None, "", []):
        shaped = LlavaShape().shape({"image": image, "conversations": turns})
        assert said(shaped) == [(0, "user", "Hi"), (1, "assistant", "Hello")]


def test_a_system_column_is_the_first_turn() -> None:
    row = {"system": "Be kind.", "conversations": [{"from": "human", "value": "Hi"}]}
    assert said(LlavaShape().shape(row)) == [(0, "system", "Be kind."), (1, "user", "Hi")]
