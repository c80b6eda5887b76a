"""Estimates: NeMo's numbers where they are right, and no crash or gap where they are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hf_processors import transformers

from shardmill.train.nemo.plan import (
    estimate_image_tokens,
    estimate_sample_length,
    estimate_video_tokens,
    image_config,
    video_config,
)

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
    assert estimate_image_tokens([224, 336], IMAGES) == 96


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
    assert estimate_video_tokens(meta, VIDEOS) == tokens


def test_processor_without_frame_rate_takes_every_frame() -> None:
    assert estimate_video_tokens([8, 360, 640, 25.0, 0.3], {**VIDEOS, "fps": None}) == 880


@pytest.mark.parametrize("meta", [None, [], [5, 5000], [0, 0]])
def test_medium_of_unknown_size_counts_500(meta: Any) -> None:
    assert estimate_image_tokens(meta, IMAGES) == 500


def test_medium_that_someone_counted_is_believed() -> None:
    row = chat(IMAGE, TEXT, mm_inputs_meta={"images_meta": [{"n_tokens": 77}]})
    assert estimate_sample_length(row, IMAGES) == (177, 77)
    assert estimate_sample_length(row) == (177, 77)


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
    assert estimate_sample_length(row, IMAGES, VIDEOS) == expected


def test_settings_are_those_of_the_processors() -> None:
    library = transformers()
    processor = SimpleNamespace(
        image_processor=library.Qwen2VLImageProcessor(),
        video_processor=library.Qwen2VLVideoProcessor(),
    )
    assert image_config(processor) == IMAGES
    found = video_config(processor)
    assert found is not None
    assert (found["fps"], found["per_frame"], found["patch_size"]) == (None, True, 14)
    processor.video_processor = library.Qwen3VLVideoProcessor()
    found = video_config(processor)
    assert found is not None
    assert (found["fps"], found["per_frame"], found["factor"]) == (2, False, 32)
    assert image_config(None) is None
    assert video_config(object()) is None


def test_limit_per_frame_counts_each_frame_by_itself() -> None:
    each = {**VIDEOS, "max_pixels": 360 * 640, "per_frame": True}
    whole = {**each, "per_frame": False}
    meta = [40, 360, 640, 25.0, 1.6]
    assert estimate_video_tokens(meta, each) > 2 * estimate_video_tokens(meta, whole)
