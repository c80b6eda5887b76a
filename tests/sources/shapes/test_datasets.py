"""Rows as the data sets' own files have them."""

from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.model.codec import build
from shardmill.plugins import SHAPES
from shardmill.sources.shapes.datasets import (
    HowtoInterlinkShape,
    InterleavedShape,
    LiquidShape,
    Mmc4Shape,
    PromptShape,
    UniControlShape,
    VideoChat2Shape,
    last_parts,
)
from shardmill.sources.shapes.general import VideoShape
from shardmill.sources.shapes.shape import RowDocument


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
    empty = LiquidShape().shape({"image_path": "a.jpg", "text": "", "text_prompt": None})
    assert [(s.kind, s.text) for s in empty.segments] == [("image", ""), ("text", "")]
    assert empty.extra == {"text_prompt": None}


@pytest.mark.parametrize(
    "row", [{"image_path": "a"}, {"text": "t"}, {"text": "t", "image_path": ""}]
)
def test_liquid_rejects_what_it_cannot_pair(row: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match="missing field"):
        LiquidShape().shape(row)


def said(shaped: RowDocument) -> list[tuple[Any, ...]]:
    return [
        (p.kind, p.text if p.kind == "text" else p.media, p.role, p.time_s) for p in shaped.segments
    ]


INTERNVID = {
    "YoutubeID": "jlMzUcmHLNs",
    "Start_timestamp": "00:01:00.500",
    "End_timestamp": "00:01:05.000",
    "Caption": "a cat",
    "UMT_Score": 0.4,
}
ROWS: list[tuple[dict[str, Any], dict[str, Any], str, tuple[float, float] | None]] = [
    ({"kind": "video"}, {"video_path": "a.mp4", "value": "a cat"}, "a.mp4", None),
    ({"kind": "video"}, {"video": "s3://b/a.mp4", "caption": "a cat"}, "s3://b/a.mp4", None),
    ({"kind": "video"}, {"video_path": "a.mp4", "value": "a cat", "clip": [1, 2]}, "a.mp4", (1, 2)),
    (
        {"kind": "webvid"},
        {"image": "000001_000050/1.mp4", "value": "a cat"},
        "000001_000050/1.mp4",
        None,
    ),
    (
        {"kind": "webvid", "path": "{page_dir}/{videoid}.mp4"},
        {"videoid": 7, "contentUrl": "http://x/7.mp4", "page_dir": "p", "name": "a cat"},
        "p/7.mp4",
        None,
    ),
    ({"kind": "internvid"}, INTERNVID, "jlMzUcmHLNs_00:01:00.500_00:01:05.000.mp4", None),
    (
        {
            "kind": "internvid",
            "path": "{YoutubeID}.mp4",
            "start": "Start_timestamp",
            "end": "End_timestamp",
        },
        INTERNVID,
        "jlMzUcmHLNs.mp4",
        (60.5, 65.0),
    ),
    ({"kind": "hd-vila"}, {"video": "x/a.mp4", "caption": "a cat"}, "x/a.mp4", None),
    (
        {"kind": "hd-vila"},
        {"video": "a.mp4", "caption": "a cat", "span": ["00:00:17.759", "00:00:23.279"]},
        "a.mp4",
        (17.759, 23.279),
    ),
    ({"kind": "ego4d"}, {"video_path": "a.mp4", "caption": "a cat"}, "a.mp4", None),
    (
        {"kind": "ego4d"},
        {"video_path": "a.mp4", "narration_text": "a cat", "start_sec": 3.0, "end_sec": 4.5},
        "a.mp4",
        (3.0, 4.5),
    ),
    (
        {"kind": "how2link"},
        {"clip_path": "/data/any/train/26n5ePOXc5I/clip_3", "caption": "a cat", "clip": [4, 8]},
        "train/26n5ePOXc5I/clip_3.mp4",
        None,
    ),
]


@pytest.mark.parametrize(("spec", "row", "path", "clip"), ROWS, ids=lambda v: str(v)[:30])
def test_rows_of_each_data_set_keep_video_caption_and_clip(
    spec: dict[str, Any], row: dict[str, Any], path: str, clip: Any
) -> None:
    shaped = build(SHAPES, spec).shape(row)
    assert said(shaped) == [("video", path, None, clip), ("text", "a cat", None, None)]


def test_other_fields_are_kept() -> None:
    shaped = build(SHAPES, {"kind": "internvid"}).shape(INTERNVID)
    assert shaped.extra == {name: v for name, v in INTERNVID.items() if name != "Caption"}


def test_a_list_of_questions_is_a_conversation_about_all_videos() -> None:
    row = {
        "video_path": ["a.mp4", "b.mp4"],
        "value": [{"q": "What?", "a": "A cat."}],
        "clip": [0, 1],
    }
    assert said(VideoShape().shape(row)) == [
        ("video", "a.mp4", "user", (0, 1)),
        ("video", "b.mp4", "user", (0, 1)),
        ("text", "What?", "user", None),
        ("text", "A cat.", "assistant", None),
    ]


@pytest.mark.parametrize(
    ("spec", "row", "reason"),
    [
        ({"kind": "video"}, {"value": "x"}, "missing field"),
        ({"kind": "video"}, {"video_path": "a"}, "missing caption"),
        ({"kind": "video"}, {"video_path": "a", "value": {"x": 1}}, "text is not text"),
        ({"kind": "video"}, {"video_path": "a", "value": "x", "clip": "soon"}, "bad clip"),
        ({"kind": "internvid"}, {"YoutubeID": "x", "Caption": "c"}, "missing field"),
        ({"kind": "how2link"}, {"clip_path": 3, "caption": "c"}, "text is not text"),
    ],
)
def test_rows_that_lack_something_are_rejects(
    spec: dict[str, Any], row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SampleError) as error:
        build(SHAPES, spec).shape(row)
    assert error.value.reason == reason


def test_the_last_parts_of_a_path() -> None:
    assert last_parts("clip_1", 3, ".mp4") == "clip_1.mp4"
    assert last_parts("a/b/c/d.mp4", 3, ".mp4") == "b/c/d.mp4"


def test_clips_and_captions_alternate() -> None:
    row = {
        "video_id": "x",
        "clips": [
            {"clip_path": "/d/train/x/clip_0", "caption": "A box.", "clip": [0, 4.5]},
            {"clip_path": "/d/train/x/clip_1", "caption": "A saw."},
            {"clip_path": "/d/train/x/clip_2", "caption": "Dust.", "start": "00:08", "end": 9},
        ],
        "summary": "Woodwork.",
    }
    shaped = HowtoInterlinkShape().shape(row)
    assert [(p.kind, p.media or p.text, p.turn, p.time_s) for p in shaped.segments] == [
        ("video", "train/x/clip_0.mp4", 0, None),
        ("text", "A box.", 0, (0.0, 4.5)),
        ("video", "train/x/clip_1.mp4", 1, None),
        ("text", "A saw.", 1, None),
        ("video", "train/x/clip_2.mp4", 2, None),
        ("text", "Dust.", 2, (8.0, 9.0)),
        ("text", "Woodwork.", 3, None),
    ]
    assert shaped.extra == {"video_id": "x"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "missing field"),
        ({"clips": []}, "missing field"),
        ({"clips": ["x"]}, "missing field"),
        ({"clips": [{"caption": "x"}]}, "missing field"),
        ({"clips": [{"clip_path": "x"}]}, "missing caption"),
        ({"clips": [{"clip_path": "x", "caption": "y", "clip": [3, 1]}]}, "bad clip"),
        ({"clips": [{"clip_path": "x", "caption": "y", "clip": [3]}]}, "bad clip"),
    ],
)
def test_clips_that_lack_something_make_the_row_a_reject(row: Any, reason: str) -> None:
    with pytest.raises(SampleError) as error:
        HowtoInterlinkShape().shape(row)
    assert error.value.reason == reason


QA = [{"i": "Answer.", "q": "What?", "a": "A cat."}]


@pytest.mark.parametrize(
    ("media", "expected"),
    [
        ({"video": "a.mp4"}, [("video", "a.mp4", None)]),
        ({"video": "a.mp4", "start": 2, "end": 5}, [("video", "a.mp4", (2.0, 5.0))]),
        ({"image": "a.jpg"}, [("image", "a.jpg", None)]),
        ({"images": ["a.jpg", "b.jpg"]}, [("image", "a.jpg", None), ("image", "b.jpg", None)]),
    ],
)
def test_media_come_before_the_first_question(media: dict[str, Any], expected: Any) -> None:
    shaped = VideoChat2Shape().shape({**media, "QA": QA, "id": 7})
    *shown, question, answer = shaped.segments
    assert [(p.kind, p.media, p.time_s) for p in shown] == expected
    assert (question.text, question.role) == ("Answer. What?", "user")
    assert (answer.text, answer.role) == ("A cat.", "assistant")
    assert shaped.extra["id"] == 7


def test_frames_of_a_converted_row_take_their_placeholders_in_order() -> None:
    frames = [f"f/frame_{n}.jpg" for n in range(16)]
    turns = [
        {"from": "human", "value": "<image>" * 16 + "What is shown?"},
        {"from": "gpt", "value": "A clock."},
    ]
    shaped = VideoChat2Shape().shape({"images": frames, "conversations": turns})
    assert [segment.media for segment in shaped.segments[:16]] == frames


def test_without_questions_it_is_a_reject() -> None:
    with pytest.raises(SampleError, match="missing field"):
        VideoChat2Shape().shape({"video": "a.mp4"})


@pytest.mark.parametrize(("images", "texts"), [(["a"], ["x", "y"]), (["a"], ["x"])])
def test_lists_that_do_not_take_turns(images: list[str], texts: list[str]) -> None:
    with pytest.raises(SampleError, match="do not match"):
        InterleavedShape().shape({"images": images, "texts": texts})
