from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from make_media import picture

from shardmill.errors import SampleError
from shardmill.model.sample import Origin
from shardmill.sources.fetch import Fetcher
from shardmill.sources.part import Row
from shardmill.sources.shapes.document import DocumentShape
from shardmill.sources.shapes.pair import PairShape
from shardmill.sources.shapes.shaped import Shape
from shardmill.stages.assemble import Assembler


def row(fields: Mapping[str, Any], **more: Any) -> Row:
    return Row(key="k", origin=Origin(source="s", path="p", row=0), fields=fields, **more)


def assemble(fields: Mapping[str, Any], shape: Shape | None = None, **more: Any) -> Any:
    return Assembler(shape or PairShape(), Fetcher(), None).assemble(row(fields, **more))


def test_a_single_medium_is_named_by_what_it_is() -> None:
    found = assemble({"image": picture("PNG"), "text": "t"})
    assert list(found.sample.media) == ["png"]
    assert found.sizes["png"].width == 64


def test_several_media_are_numbered_in_order() -> None:
    found = assemble({"images": [picture("JPEG"), picture("WEBP")], "text": "t"})
    assert [s.media for s in found.sample.document.segments] == ["0.jpg", "1.webp", ""]


def test_what_a_row_says_of_its_media_is_kept() -> None:
    medium = {"bytes": picture(), "path": "a.jpg", "frame_indices": [0, 5]}
    found = assemble({"image": medium, "text": "t", "id": 7})
    assert found.sample.extra == {"id": 7, "media_info": {"jpg": {"frame_indices": [0, 5]}}}


def test_a_reject_names_the_medium() -> None:
    with pytest.raises(SampleError, match="not a picture: 4 bytes in the row: 4 bytes that begin"):
        assemble({"image": b"text"})


def test_a_problem_of_the_row_is_the_problem_of_the_sample() -> None:
    problem = SampleError("not JSON", "row 7")
    with pytest.raises(SampleError, match="not JSON: row 7"):
        assemble({}, problem=problem)


def test_a_document_without_segments_is_a_reject() -> None:
    with pytest.raises(SampleError, match="empty document"):
        assemble({"segments": []}, DocumentShape())
