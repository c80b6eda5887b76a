from __future__ import annotations

import json
from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.model.sample import Document, Origin, Sample, Segment, sample_to_plain
from shardmill.sources.shapes.general import (
    DocumentShape,
    LlavaShape,
    MessagesShape,
    PairShape,
    TextShape,
    talk_segments,
)
from shardmill.sources.shapes.shape import RowDocument


def test_text_is_the_first_field_that_holds_any() -> None:
    shaped = TextShape().shape({"text": "", "content": "words", "url": "page"})
    assert [p.text for p in shaped.segments] == ["words"]
    assert shaped.extra == {"text": "", "url": "page"}


@pytest.mark.parametrize("row", [{}, {"text": None}, {"text": ""}, {"text": ["x"]}])
def test_a_row_without_text_is_a_reject(row: dict[str, object]) -> None:
    with pytest.raises(SampleError):
        TextShape().shape(row)


def test_a_stored_sample_comes_back() -> None:
    segments = (
        Segment(kind="video", media="0.mp4", role="user", time_s=(1.0, 2.5)),
        Segment(kind="text", text="What?", role="user"),
        Segment(kind="text", text="A cat.", role="assistant", turn=1),
    )
    origin = Origin(source="s", path="a.jsonl", row=3)
    sample = Sample(key="k", document=Document(segments), origin=origin, extra={"id": 7})
    shaped = DocumentShape().shape(sample_to_plain(sample))
    assert [(p.kind, p.text, p.media or "", p.role, p.turn, p.time_s) for p in shaped.segments] == [
        (s.kind, s.text, s.media, s.role, s.turn, s.time_s) for s in segments
    ]
    assert (shaped.origin, shaped.extra) == (origin, {"id": 7})


@pytest.mark.parametrize("row", [{}, {"segments": "x"}, {"segments": [{"smell": "x"}]}])
def test_what_is_no_document_is_a_reject(row: dict[str, object]) -> None:
    with pytest.raises(SampleError, match="not a document"):
        DocumentShape().shape(row)


def segments(shape: PairShape, row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(p.kind, p.text or p.media) for p in shape.shape(row).segments]


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
        ({"image": "a.jpg", "captions": ["one"]}, [("image", "a.jpg"), ("text", "one")]),
    ],
)
def test_pairs(row: dict[str, Any], expected: list[tuple[str, Any]]) -> None:
    assert segments(PairShape(), row) == expected


def test_other_fields_are_kept() -> None:
    shaped = PairShape().shape({"image": "a", "text": "t", "id": 7, "url": "page"})
    assert shaped.extra == {"id": 7, "url": "page"}
    both = PairShape(several="first").shape({"image": "a", "captions": ["one", "two"]})
    assert both.segments[-1].text == "one" and both.extra == {"captions": ["one", "two"]}


def test_several_captions_are_not_chosen_from_unasked() -> None:
    with pytest.raises(SampleError, match="pair,several=first"):
        PairShape().shape({"image": "a", "captions": ["one", "two"]})


def test_columns_can_be_named() -> None:
    shape = PairShape(image=("photo",), text=("title",))
    assert segments(shape, {"photo": "a", "title": "t"}) == [("image", "a"), ("text", "t")]


def test_a_pair_without_medium_or_with_text_that_is_none_is_a_reject() -> None:
    with pytest.raises(SampleError, match="missing field"):
        PairShape().shape({"text": "t"})
    with pytest.raises(SampleError, match="text is not text"):
        PairShape().shape({"image": "a", "text": 5})


def said(shaped: RowDocument) -> list[tuple[Any, ...]]:
    return [
        (p.turn, p.role, p.text if p.kind == "text" else (p.kind, p.media)) for p in shaped.segments
    ]


def talk(*turns: tuple[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in turns], **fields}


def test_placeholders_take_the_media_in_order() -> None:
    row = talk(
        ("system", "Be brief."),
        ("user", "<image>\nCompare it with <IMAGE> and the clip:\n<video>"),
        ("assistant", "They differ."),
        images=["a.jpg", "b.jpg"],
        videos=["c.mp4"],
        score=3,
    )
    shaped = MessagesShape().shape(row)
    assert said(shaped) == [
        (0, "system", "Be brief."),
        (1, "user", ("image", "a.jpg")),
        (1, "user", "\nCompare it with "),
        (1, "user", ("image", "b.jpg")),
        (1, "user", " and the clip:\n"),
        (1, "user", ("video", "c.mp4")),
        (2, "assistant", "They differ."),
    ]
    assert shaped.extra == {"score": 3}


@pytest.mark.parametrize(
    ("text", "images", "detail"),
    [
        ("<image> and <image>", ["a"], "1 images, 2 placeholders"),
        ("<image>", ["a", "b"], "2 images, 1 placeholders"),
        ("no image", ["a"], "1 images, 0 placeholders"),
        ("<image>", [], "0 images, 1 placeholders"),
        ("<video>", ["a"], "1 images, 0 placeholders"),
    ],
)
def test_placeholders_and_media_must_match(text: str, images: list[str], detail: str) -> None:
    with pytest.raises(SampleError) as error:
        MessagesShape().shape(talk(("user", text), ("assistant", "ok"), images=images))
    assert error.value.reason == "placeholders and media do not match"
    assert detail in error.value.detail


def test_an_answer_that_speaks_of_a_placeholder_takes_no_medium() -> None:
    row = talk(("user", "<image> What tag?"), ("assistant", "Use <image>."), images=["a"])
    assert said(MessagesShape().shape(row))[-1] == (1, "assistant", "Use <image>.")


def test_an_answer_with_images_must_be_asked_for() -> None:
    row = talk(("user", "Draw a cat."), ("assistant", "Here: <image>"), images=["a"])
    with pytest.raises(SampleError, match="1 more in assistant turns count as text"):
        MessagesShape().shape(row)
    shaped = MessagesShape(assistant_media=True).shape(row)
    assert said(shaped)[-1] == (1, "assistant", ("image", "a"))


def test_typed_parts_hold_their_media_or_take_the_next() -> None:
    content = [
        {"type": "text", "text": "What is <image>?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "image", "path": "b.jpg"},
        {"type": "image"},
        {"type": "text", "text": ""},
    ]
    shaped = MessagesShape().shape(talk(("user", content), images=["c.jpg"]))
    assert said(shaped) == [
        (0, "user", "What is <image>?"),
        (0, "user", ("image", {"url": "data:image/png;base64,AA=="})),
        (0, "user", ("image", "b.jpg")),
        (0, "user", ("image", "c.jpg")),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "empty conversation"),
        ({"messages": []}, "empty conversation"),
        (talk(("user", "")), "empty conversation"),
        (talk(("narrator", "x")), "unknown role"),
        ({"messages": [{"content": "x"}]}, "unknown role"),
        ({"messages": ["hello"]}, "turn is not an object"),
        (talk(("user", 5)), "text is not text"),
        (talk(("user", [{"type": "smell"}])), "unknown part"),
        (talk(("user", ["x"])), "unknown part"),
    ],
)
def test_what_is_no_conversation_is_a_reject(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(SampleError) as error:
        MessagesShape().shape(row)
    assert error.value.reason == reason


def test_columns_and_tags_can_be_named() -> None:
    roles = {"U": "user", "B": "assistant"}
    shape = MessagesShape(messages=("dialog",), role_tag="who", content_tag="said", roles=roles)
    row = {"dialog": [{"who": "U", "said": "a"}, {"who": "B", "said": "b"}]}
    assert said(shape.shape(row)) == [(0, "user", "a"), (1, "assistant", "b")]


def test_tool_calls_stay_with_their_turn() -> None:
    calls = [{"function": {"name": "add", "arguments": {"a": 1}}}]
    row = {
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "content": "", "name": "add", "tool_call_id": "x"},
            {"role": "assistant", "content": "", "tool_calls": None},
            {"role": "assistant", "content": "2", "tool_calls": []},
        ],
        "system": "Count.",
        "tools": [{"name": "add"}],
    }
    shaped = MessagesShape().shape(row)
    assert said(shaped) == [
        (0, "system", "Count."),
        (1, "user", "1+1?"),
        (2, "assistant", ""),
        (3, "tool", ""),
        (5, "assistant", "2"),
    ]
    assert shaped.extra == {
        "tools": '[{"name":"add"}]',
        "turn_fields": {
            "2": {"tool_calls": json.dumps(calls, separators=(",", ":"))},
            "3": {"tool_call_id": "x", "name": "add"},
        },
    }


def test_llava_rows() -> None:
    turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."}]
    for image in ("a.jpg", ["a.jpg"], {"bytes": b"x", "path": None}):
        shaped = LlavaShape().shape({"id": "7", "image": image, "conversations": turns})
        (first,) = image if isinstance(image, list) else [image]
        assert said(shaped) == [
            (0, "user", ("image", first)),
            (0, "user", "\nWhat?"),
            (1, "assistant", "A cat."),
        ]
        assert shaped.extra == {"id": "7"}
        assert shaped.uses == {"image": "image", "conversations": "turns"}


def test_cambrian_rows_may_have_no_image() -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    for image in (None, "", []):
        shaped = LlavaShape().shape({"image": image, "conversations": turns})
        assert said(shaped) == [(0, "user", "Hi"), (1, "assistant", "Hello")]


def test_a_system_column_is_the_first_turn() -> None:
    row = {"system": "Be kind.", "conversations": [{"from": "human", "value": "Hi"}]}
    assert said(LlavaShape().shape(row)) == [(0, "system", "Be kind."), (1, "user", "Hi")]


QA = [{"i": "Look at it.", "q": "What is it?", "a": "A cat."}, {"q": "Where?", "a": "Outside."}]


def said_of(segments: list[Any]) -> list[tuple[Any, ...]]:
    return [(p.turn, p.role, p.text if p.kind == "text" else p.media) for p in segments]


def test_questions_become_turns_and_media_come_first() -> None:
    assert said_of(talk_segments(QA, [], ["a.mp4", "b.mp4"])) == [
        (0, "user", "a.mp4"),
        (0, "user", "b.mp4"),
        (0, "user", "Look at it. What is it?"),
        (1, "assistant", "A cat."),
        (2, "user", "Where?"),
        (3, "assistant", "Outside."),
    ]


def test_placeholders_stay_where_they_are() -> None:
    turns = [{"from": "human", "value": "Is <image> like <image>?"}, {"from": "gpt", "value": "No"}]
    assert said_of(talk_segments(turns, ["a", "b"], [])) == [
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
def test_what_is_no_list_of_turns_is_a_reject(value: Any, reason: str) -> None:
    with pytest.raises(SampleError) as error:
        talk_segments(value, [], ["a.mp4"])
    assert error.value.reason == reason
