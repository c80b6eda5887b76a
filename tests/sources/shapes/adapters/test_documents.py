from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.adapters.documents import (
    LiquidShape,
    Mmc4Shape,
    PromptShape,
    UniControlShape,
)


def info(name: str, at: Any) -> dict[str, Any]:
    return {"image_name": name, "raw_url": f"http://x/{name}", "matched_text_index": at}


def test_an_image_stands_before_its_sentence_and_shares_its_turn() -> None:
    infos = [info("b", 1), info("a", 0), info("c", 1)]
    shaped = Mmc4Shape().shape({"text_list": ["one", "two"], "image_info": infos, "url": "page"})
    assert [(p.turn, p.text or p.media) for p in shaped.segments] == [
        (0, "a"),
        (0, "one"),
        (1, "b"),
        (1, "c"),
        (1, "two"),
    ]
    assert shaped.extra == {"url": "page", "image_info": infos}
    assert all(p.role is None for p in shaped.segments)


def test_a_page_without_images_is_text() -> None:
    assert len(Mmc4Shape().shape({"text_list": ["one"], "image_info": None}).segments) == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text_list": "one"}, "missing field"),
        ({"text_list": [1]}, "missing field"),
        ({"text_list": []}, "empty document"),
        ({"text_list": ["one"], "image_info": {}, "x": 1}, None),
        ({"text_list": ["one"], "image_info": "x"}, "missing field"),
        ({"text_list": ["one"], "image_info": [info("a", 1)]}, "image without sentence"),
        ({"text_list": ["one"], "image_info": [info("a", None)]}, "image without sentence"),
        ({"text_list": ["one"], "image_info": ["a"]}, "image without sentence"),
        ({"text_list": ["one"], "image_info": [{"matched_text_index": 0}]}, "missing field"),
    ],
)
def test_what_cannot_be_placed_is_a_reject(row: dict[str, Any], reason: str | None) -> None:
    if reason is None:
        assert Mmc4Shape().shape(row).segments
        return
    with pytest.raises(SampleError) as error:
        Mmc4Shape().shape(row)
    assert error.value.reason == reason


NAMES = [f"000000003-{n}" for n in range(12)]


def said_by(row: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (p.turn, p.role, p.text if p.kind == "text" else p.media)
        for p in PromptShape().shape(row).segments
    ]


def test_uniform_frames_and_their_caption() -> None:
    row = {"prompt": "<image>" * 12, "txt": "A cat.", "image_name_list": NAMES, "info": {"x": 1}}
    assert said_by(row) == [*((0, "user", name) for name in NAMES), (1, "assistant", "A cat.")]
    assert PromptShape().shape(row).extra == {"info": {"x": 1}}


def test_key_frames_keep_their_times() -> None:
    row = {"prompt": "<Iimage>#0<Pimage>#41", "txt": "A cat.", "image_name_list": NAMES[:2]}
    assert said_by(row) == [
        (0, "user", NAMES[0]),
        (0, "user", "#0"),
        (0, "user", NAMES[1]),
        (0, "user", "#41"),
        (1, "assistant", "A cat."),
    ]


def test_lists_take_turns() -> None:
    row = {"prompt": ["<image>What?", "And?"], "txt": ["A cat.", "A dog."], "images": ["0.jpg"]}
    assert said_by(row) == [
        (0, "user", "0.jpg"),
        (0, "user", "What?"),
        (1, "assistant", "A cat."),
        (2, "user", "And?"),
        (3, "assistant", "A dog."),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"txt": "x"}, "missing field"),
        ({"prompt": "x"}, "missing field"),
        ({"prompt": ["x", "y"], "txt": ["z"]}, "missing field"),
        ({"prompt": 3, "txt": "x"}, "text is not text"),
        ({"prompt": "<image><image>", "txt": "x", "images": ["a"]}, "placeholders and media"),
    ],
)
def test_what_does_not_fit_is_a_reject(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(SampleError, match=reason):
        PromptShape().shape(row)


@pytest.mark.parametrize("name", ["value", "prompt"])
def test_condition_and_prompt_ask_for_the_target(name: str) -> None:
    row = {"source": "canny/1.jpg", "target": "images/1.jpg", name: "a cat", "task": "canny"}
    shaped = UniControlShape().shape(row)
    assert [(p.role, p.turn, p.media or p.text) for p in shaped.segments] == [
        ("user", 0, "canny/1.jpg"),
        ("user", 0, "a cat"),
        ("assistant", 1, "images/1.jpg"),
    ]
    assert shaped.extra == {"task": "canny"}


@pytest.mark.parametrize(
    "row", [{}, {"source": "a", "target": "b"}, {"source": "a", "value": "x"}, {"target": "b"}]
)
def test_a_pair_that_lacks_something_is_a_reject(row: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match="missing field"):
        UniControlShape().shape(row)


def segments(shape: LiquidShape, row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(s.kind, s.text or s.media) for s in shape.shape(row).segments]


def test_liquid_takes_text_or_text_prompt() -> None:
    for name in ("text", "text_prompt"):
        row = {"image_path": "a.jpg", name: "t", "data_type": "image_text"}
        assert segments(LiquidShape(), row) == [("image", "a.jpg"), ("text", "t")]
    assert segments(LiquidShape(), {"data_type": "text_pretrain", "text": "t"}) == [("text", "t")]


@pytest.mark.parametrize(
    "row", [{"image_path": "a"}, {"text": "t"}, {"text": "t", "image_path": ""}]
)
def test_liquid_rejects_what_it_cannot_pair(row: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match="missing field"):
        LiquidShape().shape(row)
