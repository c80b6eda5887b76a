"""Three-axis positions equal those of the models' own get_rope_index, on hundreds of documents."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_qwen import IMAGE_ID, TEXT_IDS, VIDEO_ID, tiny_model

from shardmill.errors import ConfigError, SampleError
from shardmill.pack.mrope import (
    IMAGE,
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_VL,
    VIDEO,
    MropeRule,
    mrope_positions,
)

RULES = {"qwen2_vl": QWEN2_VL, "qwen2_5_vl": QWEN2_5_VL, "qwen3_vl": QWEN3_VL}
NUM_DOCUMENTS = 150


class RandomDocument:
    """Text and media in turn; a medium never touches another of its kind."""

    def __init__(self, rng: np.random.Generator, split_videos: bool) -> None:
        self.types: list[int] = []
        self.images: list[list[int]] = []
        self.videos: list[list[int]] = []
        self._text(rng, 0)
        for _ in range(int(rng.integers(0, 5))):
            tall, wide = (2 * int(n) for n in rng.integers(1, 6, 2))
            if rng.random() < 0.5:
                self.images.append([1, tall, wide])
                self.types += [IMAGE] * (tall * wide // 4)
            else:
                depth = int(rng.integers(1, 7))
                self.videos.append([depth, tall, wide])
                for _ in range(depth if split_videos else 1):
                    self.types += [VIDEO] * (tall * wide // 4 * (1 if split_videos else depth))
                    self._text(rng, 1)
            self._text(rng, 1)
        self.seconds = [float(s) for s in rng.choice([0.5, 1.0, 0.33, 2.0], len(self.videos))]

    def _text(self, rng: np.random.Generator, least: int) -> None:
        self.types += [0] * int(rng.integers(least, 9))


@pytest.mark.parametrize("family", RULES)
def test_positions_equal_the_models_own(family: str) -> None:
    rng = np.random.default_rng(5)
    model = tiny_model(family).model
    ids = np.array([TEXT_IDS - 1, IMAGE_ID, VIDEO_ID])
    compared = 0
    while compared < NUM_DOCUMENTS:
        document = RandomDocument(rng, RULES[family].split_videos)
        types = np.array(document.types, np.int64)
        if not len(types):
            continue
        seconds = document.seconds if rng.random() < 0.7 else None
        extra = {} if family != "qwen2_5_vl" or seconds is None else {"second_per_grid_ts": seconds}
        theirs, _ = model.get_rope_index(
            torch.from_numpy(ids[types])[None],
            torch.from_numpy(types)[None].int(),
            image_grid_thw=torch.tensor(document.images) if document.images else None,
            video_grid_thw=torch.tensor(document.videos) if document.videos else None,
            **extra,
        )
        ours = mrope_positions(
            types,
            RULES[family],
            images=document.images,
            videos=document.videos,
            seconds_per_grid=seconds,
        )
        np.testing.assert_array_equal(ours, theirs[:, 0].numpy())
        compared += 1


def test_text_alone_moves_all_axes_together() -> None:
    assert mrope_positions(np.zeros(3, np.int64), QWEN2_VL).tolist() == [[0, 1, 2]] * 3
    assert mrope_positions(np.zeros(0, np.int64), QWEN2_VL).shape == (3, 0)


def test_grid_that_does_not_match_is_a_sample_error() -> None:
    with pytest.raises(SampleError, match="do not match their grid"):
        mrope_positions(np.ones(5, np.int64), QWEN2_VL, images=[(1, 4, 4)])
    with pytest.raises(SampleError, match="more media tokens than media"):
        mrope_positions(np.ones(5, np.int64), QWEN2_VL)


def test_merge_size_below_one_is_refused() -> None:
    with pytest.raises(ConfigError):
        MropeRule(merge_size=0)
