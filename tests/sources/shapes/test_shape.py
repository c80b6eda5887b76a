from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.model.codec import build
from shardmill.plugins import SHAPES
from shardmill.sources.shapes.shape import (
    RowDocument,
    RowSegment,
    Shape,
    clip_in,
    count_placeholders,
    first_of,
    in_clip,
    is_missing,
    media_list,
    seconds_of,
    split_placeholders,
    text_of,
    unused,
)


def test_zero_and_false_are_something() -> None:
    assert not is_missing(0)
    assert not is_missing(False)
    assert all(map(is_missing, (None, "", [], {}, b"")))


def test_fields_are_looked_up_in_order() -> None:
    fields = {"a": "", "b": "x", "c": ["y", "z"]}
    assert first_of(fields, ("a", "b", "c")) == "b"
    assert media_list(fields, ("a", "c"), "image") == (["y", "z"], {"c": "image"})
    assert media_list(fields, ("a", "d"), "image") == ([], {"a": "image"})
    assert unused(fields, {"a", "c"}) == {"b": "x"}


def test_text_must_be_text() -> None:
    with pytest.raises(SampleError, match="field 'a' is a int"):
        text_of({"a": 5}, "a")


texts = st.lists(st.sampled_from(["<image>", "<VIDEO>", "a", " ", "\n", "<", "image>", "<b>"]))


@given(texts)
def test_every_character_stays(parts: list[str]) -> None:
    text = "".join(parts)
    found = list(split_placeholders(text))
    again = "".join(f"<{words}>" if kind == "medium" else words for kind, words in found)
    assert again == text.replace("<VIDEO>", "<video>")
    assert sum(kind == "medium" for kind, _ in found) == count_placeholders(text)


TALK = {"from": "human", "value": "<image>{0}"}, {"from": "gpt", "value": "{1}"}
# A row of every shape; {0} and {1} are texts, which must come out in this order.
ROWS: dict[str, dict[str, Any]] = {
    "text": {"text": "{0}{1}"},
    "pair": {"image": "a.jpg", "text": "{0}{1}"},
    "liquid": {"image_path": "a.jpg", "text": "{0}{1}"},
    "llava": {"image": "a.jpg", "conversations": [*TALK]},
    "cambrian": {"image": "a.jpg", "conversations": [*TALK]},
    "messages": {
        "images": ["a.jpg"],
        "messages": [
            {"role": "user", "content": "<image>{0}"},
            {"role": "assistant", "content": [{"type": "text", "text": "{1}"}]},
        ],
    },
    "finevision": {"images": ["a.jpg"], "texts": [{"user": "{0}", "assistant": "{1}"}]},
    "cauldron": {
        "images": ["a.jpg", "b.jpg"],
        "texts": [{"user": "{0}", "assistant": "{1}", "source": "tqa"}],
    },
    "instruction": {"image": "a.jpg", "question": "{0}", "answer": "{1}"},
    "alpaca": {"instruction": "{0}", "input": "", "output": "{1}", "history": []},
    "points": {"image": "a.jpg", "label": "{0}{1}", "points": []},
    "edit": {"image_list": ["a.jpg", "b.jpg", "c.jpg"], "instruction_list": [["{0}"], "{1}"]},
    "interleaved": {"images": [None, "a.jpg", None], "texts": ["{0}", None, "{1}"]},
    "obelics": {"images": [None, "a.jpg", None], "texts": ["{0}", None, "{1}"]},
    "mmc4": {
        "text_list": ["{0}", "{1}"],
        "image_info": [{"image_name": "a.jpg", "matched_text_index": 1}],
    },
    "document": {"segments": [{"text": "{0}"}, {"image": "0.jpg"}, {"text": "{1}"}]},
    "video": {"video": "a.mp4", "caption": "{0}{1}"},
    "webvid": {"image": "a.mp4", "value": "{0}{1}"},
    "internvid": {
        "YoutubeID": "x",
        "Start_timestamp": "0",
        "End_timestamp": "1",
        "Caption": "{0}{1}",
    },
    "hd-vila": {"video": "a.mp4", "caption": "{0}{1}"},
    "ego4d": {"video_path": "a.mp4", "caption": "{0}{1}"},
    "how2link": {"clip_path": "x/y/z", "caption": "{0}{1}"},
    "howto-interlink": {"clips": [{"clip_path": "x/y/z", "caption": "{0}"}], "summary": "{1}"},
    "videochat2": {"video": "a.mp4", "QA": [{"q": "{0}", "a": "{1}"}]},
    "unicontrol": {"source": "a.jpg", "target": "b.jpg", "prompt": "{0}{1}"},
    "merlin": {"image_info": ["a.jpg"], "text_list": "{0}<image>#1#{1}"},
    "prompt": {"prompt": "<image>{0}", "txt": "{1}", "images": ["a.jpg"]},
}
OPTIONS = {"points": {"ask": "{label}", "none": ""}}  # without words of its own
# Words that a shape must not take for its own marks, within white space of every kind.
words = st.tuples(
    *[st.text("\n\r\t \u00a0\u2028", max_size=3)] * 2, st.text("aé<>b\n", min_size=1, max_size=8)
).map(lambda parts: f"{parts[0]}x{parts[2]}x{parts[1]}")


def filled(value: Any, texts: tuple[str, str]) -> Any:
    if isinstance(value, str):
        return value.replace("{0}", texts[0]).replace("{1}", texts[1])
    if isinstance(value, dict):
        return {name: filled(inner, texts) for name, inner in value.items()}
    return [filled(inner, texts) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", SHAPES)
@given(st.tuples(words, words))
@settings(max_examples=30)
def test_text_comes_out_as_it_went_in(kind: str, texts: tuple[str, str]) -> None:
    shape: Shape = build(SHAPES, {"kind": kind, **OPTIONS.get(kind, {})})
    row = filled(ROWS[kind], texts)
    shaped = shape.shape(row)
    said = "".join(p.text for p in shaped.segments if p.kind == "text")
    assert said.replace("#1#", "") == "".join(texts)
    # What it is made of is said of every field, and nothing stands beside it twice.
    assert shaped.uses.keys() >= row.keys() - shaped.extra.keys()


@given(st.integers(0, 10**9))
def test_a_clock_and_its_seconds_are_the_same_time(milliseconds: int) -> None:
    seconds, rest = divmod(milliseconds, 1000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:03d}"
    assert seconds_of(clock) == pytest.approx(milliseconds / 1000)
    assert seconds_of(milliseconds / 1000) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    "value", ["", "soon", None, True, [], "1:x", -1, "-3", "inf", float("nan")]
)
def test_what_is_no_time_is_a_reject(value: Any) -> None:
    with pytest.raises(SampleError, match="bad time"):
        seconds_of(value)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, None),
        ({"clip": None, "start": 1}, None),
        ({"clip": [1, "00:02.5"]}, (1.0, 2.5)),
        ({"start": 0, "end": 3}, (0.0, 3.0)),
    ],
)
def test_a_row_names_its_clip(row: dict[str, Any], expected: Any) -> None:
    assert clip_in(row, "clip", "start", "end") == expected


@pytest.mark.parametrize("row", [{"clip": 3}, {"clip": [1]}, {"clip": [2, 2]}, {"clip": [5, 1]}])
def test_a_clip_that_cannot_be_is_a_reject(row: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match="bad clip"):
        clip_in(row, "clip", "start", "end")


def test_only_videos_get_the_clip() -> None:
    video, text = RowSegment(kind="video", media="a.mp4"), RowSegment(kind="text", text="x")
    document = RowDocument(segments=(video, text), uses={"video": "video"})
    clipped = in_clip(document, {"clip": [1, 2]}, "clip", "start", "end")
    assert [segment.time_s for segment in clipped.segments] == [(1.0, 2.0), None]
    assert clipped.uses == {"video": "video", "clip": "time"}
    assert in_clip(document, {}, "clip", "start", "end") == document
