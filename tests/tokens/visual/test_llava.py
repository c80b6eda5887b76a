from __future__ import annotations

import random

import pytest
from hf_processors import compare, llava_processor

from shardmill.errors import SampleError
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.llava import Llava


def random_image(rng: random.Random) -> MediaSize:
    return MediaSize(width=rng.randint(3, 400), height=rng.randint(3, 400))


def test_llava_equals_its_processor() -> None:
    processor = llava_processor()
    compare(Llava(height=42, width=42), processor, image=random_image, num_chats=200)
    processor.vision_feature_select_strategy = "full"
    compare(Llava(height=42, width=42, select="full"), processor, image=random_image, num_chats=50)


def test_llava_has_576_tokens() -> None:
    visual = Llava().count("image", MediaSize(width=9, height=9))
    assert (visual.num_visual, visual.grid) == (576, (1, 24, 24))


def test_videos_are_refused() -> None:
    rule, video = Llava(), MediaSize(width=9, height=9, num_frames=9)
    with pytest.raises(SampleError, match="takes no video"):
        rule.count("video", video)
    with pytest.raises(SampleError, match="takes no video"):
        rule.frames(video)
