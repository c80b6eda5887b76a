from __future__ import annotations

import pytest

from shardmill.errors import SampleError
from shardmill.model.sample import Document, Origin, Sample, Segment, sample_to_plain
from shardmill.sources.shapes.text import DocumentShape, TextShape


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
