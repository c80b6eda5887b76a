from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hf_processors import chat_template, compare, make_tokenizer, transformers
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError, SampleError
from shardmill.model.codec import digest, from_plain, to_plain
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.qwen import (
    Qwen2VL,
    Qwen3Images,
    Qwen3Videos,
    Qwen3VL,
    QwenImages,
    QwenVideos,
    fit_area,
    fit_video,
    patch_times_s,
)

IMAGES = {"min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 60}
VIDEOS = {"min_pixels": 28 * 28 * 2, "max_pixels": 28 * 28 * 9}
QWEN3_VIDEOS = {"min_pixels": 32 * 32 * 8, "max_pixels": 32 * 32 * 60}


def random_image(rng: random.Random) -> MediaSize:
    width = rng.randint(1, 500)
    return MediaSize(width=width, height=rng.randint(-(-width // 200), min(500, width * 200)))


def video(rng: random.Random) -> MediaSize:
    return MediaSize(
        width=rng.randint(4, 90),
        height=rng.randint(4, 90),
        num_frames=rng.randint(2, 40),
        fps=rng.choice([1.0, 10.0, 23.976, 25.0, 30000 / 1001]),
    )


@pytest.fixture(scope="module")
def build() -> Any:
    """Return a maker of Qwen processors with small images, so that hundreds take seconds."""
    hf = transformers()
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    marks = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    start, end, image, film = marks
    template = chat_template(image=start + image + end, video=start + film + end)

    def make(name: str, videos: Any, **images: int) -> Any:
        settings = {**IMAGES, **images}
        return getattr(hf, name)(
            Qwen2VLImageProcessor(**settings), make_tokenizer(*marks), videos, template
        )

    return make


@pytest.mark.parametrize("name", ["Qwen2VLProcessor", "Qwen2_5_VLProcessor"])
@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ({}, {}),
        ({"fps": 2.0}, {"fps": 2, "do_sample_frames": True}),
        ({"num_frames": 7, "max_frames": 16}, {"num_frames": 7, "do_sample_frames": True}),
    ],
)
def test_qwen2_equals_its_processor(
    name: str, rule: dict[str, Any], settings: dict[str, Any], build: Any
) -> None:
    from transformers import Qwen2VLVideoProcessor

    if "num_frames" in rule:  # the processor refuses videos with fewer frames than asked for

        def film(rng: random.Random) -> MediaSize:
            return MediaSize(width=30, height=40, num_frames=rng.randint(8, 40), fps=25.0)
    else:
        film = video
    ours = Qwen2VL(images=QwenImages(**IMAGES), videos=QwenVideos(**VIDEOS, **rule))
    processor = build(name, Qwen2VLVideoProcessor(**VIDEOS))
    compare(ours, processor, image=random_image, video=film, settings=settings)


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ({"fps": 2.0}, {}),
        ({"fps": 0.7}, {"fps": 0.7}),
        ({"num_frames": 6}, {"num_frames": 6, "fps": None}),
    ],
)
def test_qwen3_equals_its_processor(
    rule: dict[str, Any], settings: dict[str, Any], build: Any
) -> None:
    from transformers import Qwen3VLVideoProcessor

    size = {"shortest_edge": QWEN3_VIDEOS["min_pixels"], "longest_edge": QWEN3_VIDEOS["max_pixels"]}
    ours = Qwen3VL(
        images=Qwen3Images(**IMAGES),
        videos=Qwen3Videos(**QWEN3_VIDEOS, **rule),
    )
    processor = build("Qwen3VLProcessor", Qwen3VLVideoProcessor(size=size), patch_size=16)
    compare(ours, processor, image=random_image, video=video, settings=settings)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_capped_frames_equal_the_processor(family: str, build: Any) -> None:
    from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor

    limits = {"cap_pixels_per_frame": True, "max_video_tokens": 12 if family == "qwen3" else 40}
    rule: Any
    if family == "qwen2":
        rule = Qwen2VL(images=QwenImages(**IMAGES), videos=QwenVideos(**VIDEOS, **limits))
        processor = build("Qwen2_5_VLProcessor", Qwen2VLVideoProcessor(**VIDEOS, **limits))
    else:
        rule = Qwen3VL(
            images=Qwen3Images(**IMAGES),
            videos=Qwen3Videos(**QWEN3_VIDEOS, **limits),
        )
        size = {
            "shortest_edge": QWEN3_VIDEOS["min_pixels"],
            "longest_edge": QWEN3_VIDEOS["max_pixels"],
        }
        videos = Qwen3VLVideoProcessor(size=size, **limits)
        processor = build("Qwen3VLProcessor", videos, patch_size=16)
    compare(rule, processor, image=random_image, video=video, num_chats=60)


def test_frames_are_those_of_the_processor() -> None:
    transformers()
    from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    rng = random.Random(1)
    theirs2, theirs3 = Qwen2VLVideoProcessor(), Qwen3VLVideoProcessor()
    for _ in range(1500):
        size = MediaSize(num_frames=rng.randint(2, 20_000), fps=rng.uniform(5, 61))
        fps = rng.choice([0.5, 1.0, 2.0, 3.3, 60.0])
        meta = VideoMetadata(total_num_frames=size.num_frames, fps=size.fps)
        ours3 = Qwen3VL(videos=Qwen3Videos(fps=fps)).frames(size)
        np.testing.assert_array_equal(ours3, theirs3.sample_frames(meta, fps=fps))
        ours2 = Qwen2VL(videos=QwenVideos(fps=fps)).frames(size)
        wanted = theirs2.sample_frames(meta, fps=fps).numpy()
        wanted = wanted[wanted < size.num_frames]  # rounding can lead it past the last frame
        # It counts in single precision, eight or sixteen lanes at a time, and cuts.
        np.testing.assert_allclose(ours2, wanted, atol=1)


def test_short_clips_keep_their_own_number_of_frames() -> None:
    """A clip of two frames has one temporal patch, not the minimum of four frames."""
    clip = MediaSize(width=56, height=56, num_frames=2, fps=10.0)
    assert Qwen3VL().count("video", clip).grid[0] == 1
    assert Qwen2VL(videos=QwenVideos(fps=2.0)).count("video", clip).grid[0] == 1


@pytest.mark.parametrize(
    ("kind", "size", "reason"),
    [
        ("image", MediaSize(), "unknown media size"),
        ("image", MediaSize(width=1, height=201), "aspect ratio over 200"),
        ("video", MediaSize(width=9, height=9, num_frames=0, fps=1.0), "unknown number of frames"),
        ("video", MediaSize(width=9, height=9, num_frames=9), "unknown frame rate"),
        ("video", MediaSize(width=9, height=9, num_frames=1, fps=1.0), "too few frames"),
        (
            "video",
            MediaSize(width=9, height=9, num_frames=1 << 40, fps=1),
            "absurd number of frames",
        ),
        ("audio", MediaSize(), "takes no audio"),
    ],
)
def test_media_that_the_processor_refuses_are_rejected(
    kind: str, size: MediaSize, reason: str
) -> None:
    for rule in (Qwen2VL(videos=QwenVideos(fps=2.0)), Qwen3VL()):
        with pytest.raises(SampleError, match=reason):
            rule.count(kind, size)


def test_a_video_without_end_is_rejected_before_its_text_is_written() -> None:
    every_frame = Qwen3VL(videos=Qwen3Videos(fps=None))
    with pytest.raises(SampleError, match="too many frames"):
        every_frame.count("video", MediaSize(width=9, height=9, num_frames=1 << 23, fps=1.0))


def test_settings_are_checked_and_stored() -> None:
    with pytest.raises(ConfigError, match="min_pixels"):
        QwenImages(min_pixels=10, max_pixels=9)
    with pytest.raises(ConfigError, match="fps of videos"):
        QwenVideos(fps=0.0)
    with pytest.raises(ConfigError, match="num_frames of videos"):
        QwenVideos(num_frames=0)
    rule = Qwen3VL(videos=Qwen3Videos(fps=1.0))
    assert from_plain(to_plain(rule)) == rule
    assert digest(rule) != digest(Qwen3VL())


def test_one_setting_of_qwen3_leaves_its_others_as_they_are() -> None:
    plain = {"kind": "visual/qwen3-vl", "images": {"max_pixels": 99_999}}
    assert from_plain(plain) == Qwen3VL(images=Qwen3Images(max_pixels=99_999))
    assert from_plain(plain).images.patch_size == 16


sides = st.integers(1, 100_000)


def test_areas_equal_those_of_the_processor() -> None:
    transformers()
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    rng = random.Random(0)
    for _ in range(20_000):
        height = rng.randint(1, 6000)
        width = rng.randint(-(-height // 200), min(6000, height * 200))
        limits = {
            "factor": rng.choice([8, 28, 32]),
            "min_pixels": rng.choice([56 * 56, 65536, 512 * 512]),
            "max_pixels": rng.choice([1003520, 12845056, 1 << 24]),
        }
        assert fit_area(height, width, **limits) == smart_resize(height, width, **limits)


def test_volumes_equal_those_of_the_processor() -> None:
    transformers()
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

    rng = random.Random(0)
    for _ in range(20_000):
        num_frames, height, width = (
            rng.randint(2, 800),
            rng.randint(10, 2200),
            rng.randint(11, 2200),
        )
        limits = {
            "factor": rng.choice([28, 32]),
            "min_pixels": rng.choice([4096, 131072]),
            "max_pixels": rng.choice([786432, 25165824]),
        }
        ours = fit_video(num_frames, height, width, temporal_patch=2, **limits)
        assert ours == smart_resize(num_frames, height, width, temporal_factor=2, **limits)


@given(height=sides, width=sides)
def test_sizes_are_multiples_within_the_limits(height: int, width: int) -> None:
    if max(height, width) / min(height, width) > 200:
        with pytest.raises(SampleError, match="aspect ratio"):
            fit_area(height, width, factor=28, min_pixels=3136, max_pixels=1003520)
        return
    tall, wide = fit_area(height, width, factor=28, min_pixels=3136, max_pixels=1003520)
    assert tall % 28 == wide % 28 == 0
    assert tall >= 28
    assert wide >= 28
    assert tall * wide <= 1003520


def test_times_of_patches_by_hand() -> None:
    assert patch_times_s(np.array([0, 5, 9]), 10.0) == [0.25, 0.9]
    assert patch_times_s(np.array([0, 5, 9, 12]), 10.0, temporal_patch=4) == [0.6]
    with pytest.raises(SampleError, match="unknown frame rate"):
        patch_times_s(np.array([0, 1]), float("nan"))
