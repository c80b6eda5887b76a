"""Tables as people of this field have them: each is read right, or refused with what to type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardmill.errors import ConfigError, SampleError
from shardmill.sources.columns import check_row, looks_like
from shardmill.sources.guess import shape_kind, shape_of, source_from_input
from shardmill.sources.shapes.general import PairShape, TextShape
from shardmill.sources.shapes.shape import RowDocument, RowSegment, Shape

SHARE = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."}]
TALK = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A cat."}]
PARTS = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
]
ALPACA = {"instruction": "Add.", "input": "1 1", "output": "2"}
LONG = "a grey cat that sleeps on a mat in the sun"

# name, a row, and the shape that it must get or what the refusal must say.
WILD: list[tuple[str, dict[str, Any], str]] = [
    ("llava", {"id": "7", "image": "a.jpg", "conversations": SHARE}, "llava"),
    ("llava, no image", {"id": "7", "conversations": [{"from": "human", "value": "x"}]}, "llava"),
    ("sharegpt", {"conversations": SHARE[1:], "system": "Be kind.", "tools": "[]"}, "llava"),
    ("llama-factory sharegpt", {"conversations": SHARE, "images": ["a.jpg"]}, "llava"),
    ("ms-swift", {"messages": TALK, "images": ["a.jpg"], "channel": "vqa"}, "messages"),
    ("trl", {"messages": PARTS, "images": ["a.jpg"]}, "messages"),
    ("openai text", {"messages": TALK[1:]}, "messages"),
    (
        "finevision",
        {
            "images": ["a.jpg"],
            "texts": [{"user": "What?", "assistant": "A cat."}],
            "source": "vqa",
            "relevance_ratings": [4, 5],
        },
        "finevision",
    ),
    (
        "the cauldron",
        {"images": ["a.jpg"], "texts": [{"user": "Q", "assistant": "A", "source": "tqa"}]},
        "finevision",
    ),
    ("coco pairs", {"image": "a.jpg", "caption": "A cat.", "image_id": 3, "id": 8}, "pair"),
    (
        "laion",
        {"URL": "http://x/a", "TEXT": "A cat.", "WIDTH": 3, "LICENSE": "?", "NSFW": "UNLIKELY"},
        "pair",
    ),
    (
        "datacomp",
        {"uid": "x", "url": "http://x/a.jpg", "text": "A cat.", "face_bboxes": [[0, 0, 1, 1]]},
        "pair",
    ),
    (
        "img2dataset",
        {
            "image": "a.jpg",
            "text": "A cat.",
            "caption": "A cat.",
            "url": "http://x/a.jpg",
            "key": "00001",
            "status": "success",
            "error_message": None,
            "exif": '{"Image Make": "a", "Image Model": "b c d e f g h i j k"}',
            "sha256": "00ff",
        },
        "pair",
    ),
    ("web text", {"text": LONG, "url": "http://x/page", "timestamp": "2019", "id": "7"}, "text"),
    ("code", {"content": "let a = 1", "path": "src/app.ts", "lang": "TypeScript"}, "text"),
    ("fineweb", {"text": "x", "dump": "CC", "language": "en", "token_count": 3}, "text"),
    ("mmc4", {"text_list": ["One."], "image_info": [], "similarity_matrix": [[0.5]]}, "mmc4"),
    ("one video", {"video": "a.mp4", "caption": "A cat.", "clip": [1, 4]}, "pair"),
    ("webvid", {"video_path": "a.mp4", "value": "A cat."}, "video"),
    ("internvid", {"YoutubeID": "x", "Start_timestamp": "0", "End_timestamp": "1", "Caption": "A"},
     "internvid"),
    ("videochat2", {"video": "a.mp4", "QA": [{"i": "", "q": "What?", "a": "A."}]}, "videochat2"),
    # What has no shape of its own yet is refused, and so is what more than one column could be.
    ("alpaca", ALPACA, "instruction"),
    ("alpaca with image", {**ALPACA, "image": "a.jpg"}, "instruction"),
    ("vqa", {"image": "a.jpg", "question": "What?", "answer": "A cat."}, "instruction"),
    ("vqa, many answers", {"image": "a.jpg", "question": "?", "answers": ["x", "y"]},
     "instruction,several=first"),
    ("obelics", {"images": ["a.jpg", None], "texts": [None, "One."]}, "interleaved"),
    ("pixmo points", {"image_url": "http://x/a.jpg", "label": "cat", "points": [{"x": 1}]},
     "no points x, y"),
    ("labels", {"image": "a.jpg", "label": "cat"}, "--shape pair,text=label"),
    ("dpo", {"prompt": "x", "chosen": "y", "rejected": "z"}, "cannot tell the shape"),
    ("dpo chats", {"messages": TALK[1:], "rejected": SHARE[1:]}, "a side of a preference"),
    ("dpo with image", {"image": "a.jpg", "text": "x", "chosen": "y", "rejected": "z"}, "rejected"),
    ("ms-swift rlhf", {"messages": TALK[1:], "rejected_response": "No."}, "preference"),
    ("grpo", {"messages": TALK[1:], "solution": "4"}, "'solution' looks like an answer"),
    ("grpo, number", {"messages": TALK[1:], "answer": 4}, "'answer' looks like an answer"),
    ("rl prompts", {"prompt": TALK, "images": ["a.jpg"], "ground_truth": "4"}, "'prompt' looks"),
    ("editing", {"input_image": "a.jpg", "edit_prompt": "Red.", "edited_image": "b.jpg"}, "edit"),
    ("editing in pairs", {"image": "a.jpg", "edited": "b.jpg", "text": "Red."},
     "'edited' looks like images"),
    ("recaptions", {"image": "a.jpg", "caption": "A cat.", "blip": LONG}, "'blip' looks like text"),
    ("two captions", {"image": "a.jpg", "text": "A cat.", "caption": "A dog."}, "--extra caption"),
    ("several captions", {"image": "a.jpg", "captions": ["A.", "B."]}, "pair,several=first"),
    ("turns as JSON", {"image": "a.jpg", "conversations": json.dumps(SHARE)}, "'conversations'"),
    ("other turns", {"image": "a.jpg", "talk": SHARE}, "--shape llava,messages=talk"),
    ("timed captions", {"video": "a.mp4", "captions": [{"start": 0, "end": 1, "text": "A."}]},
     "text is not text"),
    ("two images", {"image": "a.jpg", "depth_map": "b.png", "text": "x"}, "'depth_map' looks like"),
    ("text and image", {"text": "x", "file_name": "a.jpg"}, "pair"),
    ("chinese", {"image": "a.jpg", "描述": "一只灰色的猫在垫子上安静地睡觉了很久。"}, "like text"),
]  # fmt: skip


def guess(folder: Path, *rows: dict[str, Any], shape: Shape | None = None, **more: Any) -> Shape:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return shape_of(source_from_input([str(path)]), shape, **more)


@pytest.mark.parametrize(("row", "expected"), [w[1:] for w in WILD], ids=[w[0] for w in WILD])
def test_a_table_is_read_right_or_refused(
    tmp_path: Path, row: dict[str, Any], expected: str
) -> None:
    try:
        shape = guess(tmp_path, row, row)
    except ConfigError as error:
        assert expected in str(error)
        assert "--shape" in str(error) and str(tmp_path) in str(error)
        return
    try:
        assert shape.shape(row).segments and shape_kind(shape) == expected
    except SampleError as error:  # said before the work too, by the stage
        assert expected in str(error)


def test_a_column_that_the_user_names_as_extra_is_kept_out_of_the_shape(tmp_path: Path) -> None:
    row = {"image": "a.jpg", "text": "A cat.", "caption": "A dog."}
    with pytest.raises(ConfigError, match="--extra caption"):
        guess(tmp_path, row)
    assert shape_kind(guess(tmp_path, row, extra=["caption"])) == "pair"


def test_later_rows_and_files_are_looked_at(tmp_path: Path) -> None:
    good = {"image": "a.jpg", "caption": "A cat."}
    with pytest.raises(ConfigError, match="'answer' looks like an answer: 'B'"):
        guess(tmp_path, *[good] * 9, {**good, "answer": "B"})
    paths = [tmp_path / f"{number:02d}.jsonl" for number in range(20)]
    for path in paths:
        path.write_text(json.dumps(good))
    paths[-1].write_text(json.dumps({**good, "question": "What?"}))
    with pytest.raises(ConfigError, match=r"19.jsonl are taken as pair .*nothing uses"):
        shape_of(source_from_input([str(tmp_path / "[0-9]*.jsonl")]))
    paths[-1].write_text(json.dumps({"messages": TALK[1:]}))
    with pytest.raises(ConfigError, match=r"pair \(.*0.jsonl\), messages \(.*19.jsonl\): ingest"):
        shape_of(source_from_input([str(tmp_path / "[0-9]*.jsonl")]))


def test_the_key_column_and_named_shapes(tmp_path: Path) -> None:
    row = {"photo": "a.jpg", "title": LONG, "file": "b.png"}
    shape = PairShape(image=("photo",), text=("title",))
    assert guess(tmp_path, row, shape=shape, known=["file"]) == shape


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"image": "a.jpg", "text": "x", "texts": [{"user": "Q", "assistant": "A"}]}, "texts"),
        ({"image": "a.jpg", "text": "x", "mask": b"\x89PNG"}, "mask"),
        ({"image": "a.jpg", "note": LONG}, "note"),  # no other text
        ({"image": "a.jpg", "text": "x", "note": LONG}, None),  # looked at before the work only
        ({"image": "a.jpg", "text": "x", "score": 0.5, "tags": ["a", "b"]}, None),
    ],
)
def test_a_row_that_changes_midway_is_a_reject(row: dict[str, Any], named: str | None) -> None:
    document = PairShape().shape(row)
    if named is None:
        check_row(row, document, ())
        return
    with pytest.raises(SampleError, match=f"content used by nothing: '{named}' .*--extra {named}"):
        check_row(row, document, ())
    check_row(row, document, (named,))


def test_a_shape_of_the_users_own_need_not_say_what_it_uses() -> None:
    row = {"words": LONG, "answer": "B"}
    segment = RowSegment(kind="text", text=LONG)
    check_row(row, RowDocument(segments=(segment,)), ())
    with pytest.raises(SampleError, match="'answer'"):
        check_row(row, RowDocument(segments=(segment,), extra={"answer": "B"}), ())
    assert TextShape().shape({"text": "x"}).uses == {"text": "text"}


@pytest.mark.parametrize(
    ("name", "value", "look"),
    [
        ("alt_text", "A", "text"),
        ("altTexts", ["A"], "text"),
        ("text_language", "en", ""),
        ("num_images", 3, ""),
        ("frames", [0, 5, 9], ""),
        ("meta", {"a": 1}, ""),
        ("source", "https://x/a.jpg", ""),
        ("second_url", "https://x/a.jpg", "images"),
        ("x", "data:image/png;base64,AAAA", "images"),
        ("x", "Look at cat.jpg", ""),
        ("x", {"bytes": b"x", "path": None}, "media"),
        ("x", [{"path": "a.wav"}], "audio"),
        ("sha", b"\x00\xff", "bytes"),
    ],
)
def test_names_and_values_tell_content(name: str, value: Any, look: str) -> None:
    assert looks_like(name, value, {"image", "text"}, weak=True) == look


@pytest.mark.parametrize("value", ["Red.", "a cat", "很多很多"])
def test_short_texts_and_labels_count_where_there_is_no_text(value: str) -> None:
    assert looks_like("legend", value, {"image"}, weak=False) == "text"
    assert looks_like("legend", value, {"image", "text"}, weak=True) == ""
    assert looks_like("boxes", [[0, 1]], {"image"}, weak=False) == "labels"
    assert looks_like("split", "train", {"image"}, weak=True) == ""
