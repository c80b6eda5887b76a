from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.pair import LiquidShape, PairShape


def pieces(shape: PairShape | LiquidShape, row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(p.kind, p.text or p.media) for p in shape.shape(row).pieces]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"image": "a.jpg", "caption": "t"}, [("image", "a.jpg"), ("text", "t")]),
        ({"image_path": "a.jpg", "text_prompt": "t"}, [("image", "a.jpg"), ("text", "t")]),
        ({"url": "http://x/a.jpg", "text": "t"}, [("image", "http://x/a.jpg"), ("text", "t")]),
        ({"image": None, "url": "u", "text": "t"}, [("image", "u"), ("text", "t")]),
        ({"images": ["a", "b"], "text": "t"}, [("image", "a"), ("image", "b"), ("text", "t")]),
        ({"video": "a.mp4", "url": "page", "text": "t"}, [("video", "a.mp4"), ("text", "t")]),
        ({"audio": "a.wav", "text": "t"}, [("audio", "a.wav"), ("text", "t")]),
        ({"image": "a.jpg", "text": ""}, [("image", "a.jpg")]),
        ({"image": "a.jpg", "captions": ["one", "two"]}, [("image", "a.jpg"), ("text", "one")]),
    ],
)
def test_pairs(row: dict[str, Any], expected: list[tuple[str, Any]]) -> None:
    assert pieces(PairShape(), row) == expected


def test_other_fields_are_kept() -> None:
    shaped = PairShape().shape({"image": "a", "text": "t", "id": 7, "url": "page"})
    assert shaped.extra == {"id": 7, "url": "page"}
    both = PairShape().shape({"image": "a", "captions": ["one", "two"]})
    assert both.extra == {"captions": ["one", "two"]}


def test_columns_can_be_named() -> None:
    shape = PairShape(image=("photo",), text=("title",))
    assert pieces(shape, {"photo": "a", "title": "t"}) == [("image", "a"), ("text", "t")]


def test_a_pair_without_medium_or_with_text_that_is_none_is_a_reject() -> None:
    with pytest.raises(SampleError, match="missing field"):
        PairShape().shape({"text": "t"})
    with pytest.raises(SampleError, match="text is not text"):
        PairShape().shape({"image": "a", "text": 5})


def test_liquid_takes_text_or_text_prompt() -> None:
    for name in ("text", "text_prompt"):
        row = {"image_path": "a.jpg", name: "t", "data_type": "image_text"}
        assert pieces(LiquidShape(), row) == [("image", "a.jpg"), ("text", "t")]
    assert pieces(LiquidShape(), {"data_type": "text_pretrain", "text": "t"}) == [("text", "t")]


@pytest.mark.parametrize(
    "row", [{"image_path": "a"}, {"text": "t"}, {"text": "t", "image_path": ""}]
)
def test_liquid_rejects_what_it_cannot_pair(row: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match="missing field"):
        LiquidShape().shape(row)
