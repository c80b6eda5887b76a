from __future__ import annotations

import random

import pytest
from hf_processors import compare, gemma3_processor, transformers

from shardmill.errors import SampleError
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.gemma3 import Gemma3


def random_image(rng: random.Random) -> MediaSize:
    return MediaSize(width=rng.randint(3, 400), height=rng.randint(3, 400))


@pytest.mark.parametrize("pan_and_scan", [False, True])
def test_gemma3_equals_its_processor(pan_and_scan: bool) -> None:
    rule = Gemma3(num_tokens=4, pan_and_scan=pan_and_scan, min_crop_size=90)
    settings = {"do_pan_and_scan": pan_and_scan, "pan_and_scan_min_crop_size": 90}
    compare(rule, gemma3_processor(), image=random_image, num_chats=200, image_settings=settings)


def test_crops_of_gemma3_equal_those_of_its_processor() -> None:
    hf = transformers()
    import torch

    theirs = hf.Gemma3ImageProcessor()
    rule = Gemma3(pan_and_scan=True, min_crop_size=100, max_num_crops=6)
    rng = random.Random(0)
    for _ in range(3000):
        unit = rng.randint(1, 300)
        height, width = unit * rng.randint(1, 8), unit * rng.randint(1, 8)
        pixels = torch.zeros(1).expand(1, 3, height, width)
        crops = theirs.pan_and_scan_batched(pixels, 100, 6, 1.2)
        visual = rule.count("image", MediaSize(height=height, width=width))
        assert visual.num_runs == len(crops) + 1, (height, width)


def test_videos_are_refused() -> None:
    rule, video = Gemma3(), MediaSize(width=9, height=9, num_frames=9)
    with pytest.raises(SampleError, match="takes no video"):
        rule.count("video", video)
    with pytest.raises(SampleError, match="takes no video"):
        rule.frames(video)
