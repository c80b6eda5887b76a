from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_media import image

from shardmill.errors import SampleError
from shardmill.model.codec import build
from shardmill.model.sample import Origin
from shardmill.plugins import SHAPES
from shardmill.shards.samples import parse_sample, sample_members
from shardmill.sources.fetch import Fetcher
from shardmill.sources.shapes.general import DocumentShape, PairShape
from shardmill.sources.shapes.shape import Shape
from shardmill.sources.source import Row
from shardmill.stages.ingest import Assembler, jsonable


def row(fields: Mapping[str, Any], **more: Any) -> Row:
    return Row(key="k", origin=Origin(source="s", path="p", row=0), fields=fields, **more)


def assemble(fields: Mapping[str, Any], shape: Shape | None = None, **more: Any) -> Any:
    assembler = Assembler(shape or PairShape(), Fetcher(), None)
    return assembler.complete(assembler.begin(row(fields, **more), lambda key: None))


def test_a_single_medium_is_named_by_what_it_is() -> None:
    found = assemble({"image": image("PNG"), "text": "t"})
    assert list(found.sample.media) == ["png"]
    assert found.sizes["png"].width == 64


def test_several_media_are_numbered_in_order() -> None:
    found = assemble({"images": [image("JPEG"), image("WEBP")], "text": "t"})
    assert [s.media for s in found.sample.document.segments] == ["0.jpg", "1.webp", ""]


def test_what_a_row_says_of_its_media_is_kept() -> None:
    medium = {"bytes": image(), "path": "a.jpg", "frame_indices": [0, 5]}
    found = assemble({"image": medium, "text": "t", "id": 7})
    assert found.sample.extra == {"id": 7, "media_info": {"jpg": {"frame_indices": [0, 5]}}}


def test_a_reject_names_the_medium() -> None:
    with pytest.raises(SampleError, match="not an image: 4 bytes in the row: 4 bytes that begin"):
        assemble({"image": b"text"})


def test_a_problem_of_the_row_is_the_problem_of_the_sample() -> None:
    problem = SampleError("not JSON", "row 7")
    with pytest.raises(SampleError, match="not JSON: row 7"):
        assemble({}, problem=problem)


def test_a_document_without_segments_is_a_reject() -> None:
    with pytest.raises(SampleError, match="empty document"):
        assemble({"segments": []}, DocumentShape())


@pytest.mark.parametrize("kind", sorted(SHAPES))
@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"url": v}, lambda v: {"content": [v]}])
def test_a_row_nested_deeper_than_the_stack_is_a_reject(kind: str, wrap: Any) -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = wrap(deep)
    names = [*NAMES, "url", "content"]
    with pytest.raises(SampleError):
        assemble(dict.fromkeys(names, deep), build(SHAPES, {"kind": kind}))
    for name in names:
        with pytest.raises(SampleError):
            assemble({"text": "t", "image": image(), name: deep}, build(SHAPES, {"kind": kind}))


NAMES = ["image", "images", "video", "text", "caption", "conversations", "messages", "text_list"]


NAMES += ["image_info", "segments", "origin", "extra", "image_path", "data_type", "system"]


INNER = ["from", "value", "role", "content", "type", "text", "image", "path", "bytes", "url"]


INNER += ["matched_text_index", "image_name", "turn", "time_s", "media", "source", "row"]


WORDS = ["human", "gpt", "user", "assistant", "<image>", "a <video> b", "image", "text", "../x.jpg"]


WORDS += ["gone.jpg", "data:image/png;base64,AAAA", "x.tar::y", "x.lmdb::y", "\0", "pipe:ls", "::"]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats()
    | st.sampled_from(WORDS)
    | st.sampled_from([b"", b"text", image("PNG", 3, 2)]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER), inner, max_size=4)
    ),
    max_leaves=12,
)


rows = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)


@settings(max_examples=300, deadline=None)
@given(rows, st.sampled_from(sorted(SHAPES)))
def test_any_row_is_a_sample_or_a_reject(fields: dict[str, Any], kind: str) -> None:
    try:
        found = assemble(fields, build(SHAPES, {"kind": kind}), media_dir="/nowhere")
        members = dict(sample_members(found.sample))
    except SampleError:
        return
    again = parse_sample("k", {name: memoryview(content) for name, content in members.items()})
    assert again.document == found.sample.document


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.datetimes()
    | st.decimals()
)


json_values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3)
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_whatever_arrow_gives_can_be_stored(fields: dict[str, object]) -> None:
    stored = jsonable(fields)
    assert orjson.loads(orjson.dumps(stored)) == stored


def test_values_that_json_does_not_know() -> None:
    fields = {
        "when": datetime(2024, 1, 2, 3, 4),
        "day": date(2024, 1, 2),
        "long": timedelta(seconds=90),
        "price": Decimal("1.50"),
        "nan": float("nan"),
        "raw": b"x",
        "big": 1 << 70,
        "inner": {"raw": b"x", "n": 1},
    }
    assert jsonable(fields) == {
        "when": "2024-01-02T03:04:00",
        "day": "2024-01-02",
        "long": 90.0,
        "price": "1.50",
        "nan": None,
        "big": str(1 << 70),
        "inner": {"n": 1},
    }


def test_what_cannot_be_stored_is_a_reject() -> None:
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(SampleError, match="nested too deep"):
        jsonable({"a": deep})
    with pytest.raises(SampleError, match="a field holds a object"):
        jsonable({"a": object()})
