from __future__ import annotations

import random
from typing import Any

import pytest
from hf_processors import chat_template, compare, make_tokenizer, transformers

from shardmill.errors import SampleError
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.fixed import Gemma3, Llava


def picture(rng: random.Random) -> MediaSize:
    return MediaSize(width=rng.randint(3, 400), height=rng.randint(3, 400))


def test_llava_equals_its_processor() -> None:
    transformers()
    from transformers import CLIPImageProcessor, LlavaProcessor

    processor = LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": 42}, crop_size={"height": 42, "width": 42}),
        make_tokenizer("<image>", bos=True),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template(image="<image>\n"),
    )
    compare(Llava(height=42, width=42), processor, image=picture, num_chats=200)
    processor.vision_feature_select_strategy = "full"
    compare(Llava(height=42, width=42, select="full"), processor, image=picture, num_chats=50)


def test_llava_has_576_tokens() -> None:
    visual = Llava().count("image", MediaSize(width=9, height=9))
    assert (visual.num_visual, visual.grid) == (576, (1, 24, 24))


@pytest.mark.parametrize("pan_and_scan", [False, True])
def test_gemma3_equals_its_processor(pan_and_scan: bool) -> None:
    transformers()
    from transformers import Gemma3ImageProcessor, Gemma3Processor

    tokenizer = make_tokenizer(
        boi_token="<start_of_image>", image_token="<image_soft_token>", eoi_token="<end_of_image>"
    )
    processor = Gemma3Processor(
        Gemma3ImageProcessor(size={"height": 28, "width": 28}),
        tokenizer,
        chat_template=chat_template(image="<start_of_image>"),
        image_seq_length=4,
    )
    rule = Gemma3(num_tokens=4, pan_and_scan=pan_and_scan, min_crop_size=90)
    settings = {"do_pan_and_scan": pan_and_scan, "pan_and_scan_min_crop_size": 90}
    compare(rule, processor, image=picture, num_chats=200, image_settings=settings)


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


@pytest.mark.parametrize("rule", [Llava(), Gemma3()])
def test_videos_are_refused(rule: Any) -> None:
    with pytest.raises(SampleError, match="takes no video"):
        rule.count("video", MediaSize(width=9, height=9, num_frames=9))
