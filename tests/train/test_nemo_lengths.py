"""Estimates: NeMo's numbers where they are right, and no crash or gap where they are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hf_processors import chat_template, make_tokenizer, transformers

from shardmill.model.sample import MediaSize
from shardmill.neat_packing import (
    _estimate_image_tokens,
    _estimate_sample_length,
    _estimate_video_tokens,
)
from shardmill.tokens.count import estimate_medium
from shardmill.tokens.visual.qwen import Qwen3VL
from shardmill.tokens.visual.rule import rule_of_processor
from shardmill.train.nemo import rule_of, rule_of_configs

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

IMAGES = {
    "factor": 28,
    "patch_size": 14,
    "merge_size": 2,
    "min_pixels": 3136,
    "max_pixels": 1003520,
}
VIDEOS = {
    "factor": 32,
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 16384,
    "max_pixels": 16 * 16 * 2 * 2 * 2 * 6144,
    "fps": 2.0,
    "min_frames": 4,
    "max_frames": 768,
}


def chat(*content: Any, **extra: Any) -> dict[str, Any]:
    return {"conversation": [{"role": "user", "content": list(content)}], **extra}


TEXT = {"type": "text", "text": "x" * 300}
IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


def test_image_tokens_come_from_height_and_width() -> None:
    assert _estimate_image_tokens([224, 336], IMAGES) == 96


@pytest.mark.parametrize(
    ("meta", "tokens"),
    [
        ([100, 360, 640, 25.0, 4.0], 880),
        ([0, 360, 640, 25.0, 4.0], 880),
        ([100, 360, 640, 0, 4.0], 880),
        # A clip of two frames has two, not min_frames.
        ([2, 360, 640, 25.0, 0.08], 220),
    ],
)
def test_video_tokens_come_from_the_frames_that_will_be_read(
    meta: list[float], tokens: int
) -> None:
    assert _estimate_video_tokens(meta, VIDEOS) == tokens


def test_processor_without_frame_rate_takes_every_frame() -> None:
    assert _estimate_video_tokens([8, 360, 640, 25.0, 0.3], {**VIDEOS, "fps": None}) == 880


@pytest.mark.parametrize("meta", [None, [], [5, 5000], [0, 0]])
def test_medium_of_unknown_size_counts_500(meta: Any) -> None:
    assert _estimate_image_tokens(meta, IMAGES) == 500


def test_medium_that_someone_counted_is_believed() -> None:
    row = chat(IMAGE, TEXT, mm_inputs_meta={"images_meta": [{"n_tokens": 77}]})
    assert _estimate_sample_length(row, IMAGES, return_media_tokens=True) == (177, 77)
    assert _estimate_sample_length(row, return_media_tokens=True) == (177, 77)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (chat(TEXT, IMAGE), (600, 500)),
        (chat(TEXT, IMAGE, mm_inputs_meta={"images_meta": [[224, 336]]}), (196, 96)),
        (chat(IMAGE, VIDEO, mm_inputs_meta={"images_meta": [[224, 336]]}), (596, 596)),
        (chat(IMAGE, IMAGE, mm_inputs_meta={"images_meta": [[224, 336], None]}), (596, 596)),
        (chat(IMAGE, _text_tokens=77), (577, 500)),
        ({"conversation": [{"role": "user", "content": "plain string"}]}, (4, 0)),
        ({"conversation": [{"role": "user", "content": "图像说明文字"}]}, (6, 0)),
        ({"conversation": [{"role": "user", "content": None}]}, (0, 0)),
        ({}, (0, 0)),
    ],
)
def test_rows(row: dict[str, Any], expected: tuple[int, int]) -> None:
    assert _estimate_sample_length(row, IMAGES, VIDEOS, return_media_tokens=True) == expected


def test_a_known_processor_is_counted_by_its_own_rule() -> None:
    start, end, image, video = MARKS
    library = transformers()
    processor = library.Qwen2VLProcessor(
        library.Qwen2VLImageProcessor(max_pixels=28 * 28 * 8),
        make_tokenizer(*MARKS),
        library.Qwen2VLVideoProcessor(),
        chat_template(image=start + image + end, video=start + video + end),
    )
    assert rule_of(processor) == rule_of_processor(processor)
    assert estimate_medium("image", MediaSize(width=900, height=900), rule_of(processor)) <= 8


def test_other_processors_are_counted_as_nemo_does() -> None:
    library = transformers()
    processor = SimpleNamespace(
        image_processor=library.Qwen2VLImageProcessor(),
        video_processor=library.Qwen3VLVideoProcessor(),
    )
    settings = processor.video_processor
    rule = rule_of(processor)
    assert isinstance(rule, Qwen3VL)
    assert (rule.images.patch_size, rule.images.max_pixels) == (14, 1003520)
    assert (rule.videos.fps, rule.videos.patch_size) == (2, 16)
    assert rule.videos.max_pixels == settings.size["longest_edge"]
    assert rule_of(object()) == rule_of_configs(IMAGES, VIDEOS)
