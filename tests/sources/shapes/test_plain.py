from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.model.sample import Document, Origin, Sample, Segment, sample_to_plain
from shardmill.sources.shapes.plain import DocumentShape, PairShape, TextShape


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
        ({"image": "a.jpg", "captions": ["one", "two"]}, [("image", "a.jpg"), ("text", "one")]),
    ],
)
def test_pairs(row: dict[str, Any], expected: list[tuple[str, Any]]) -> None:
    assert segments(PairShape(), row) == expected


def test_other_fields_are_kept() -> None:
    shaped = PairShape().shape({"image": "a", "text": "t", "id": 7, "url": "page"})
    assert shaped.extra == {"id": 7, "url": "page"}
    both = PairShape().shape({"image": "a", "captions": ["one", "two"]})
    assert both.extra == {"captions": ["one", "two"]}


def test_columns_can_be_named() -> None:
    shape = PairShape(image=("photo",), text=("title",))
    assert segments(shape, {"photo": "a", "title": "t"}) == [("image", "a"), ("text", "t")]


def test_a_pair_without_medium_or_with_text_that_is_none_is_a_reject() -> None:
    with pytest.raises(SampleError, match="missing field"):
        PairShape().shape({"text": "t"})
    with pytest.raises(SampleError, match="text is not text"):
        PairShape().shape({"image": "a", "text": 5})
