"""Three-axis positions equal those of the models' own get_rope_index, on hundreds of documents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_qwen import IMAGE_ID, TEXT_IDS, VIDEO_ID, tiny_model

from shardmill.errors import SampleError
from shardmill.model.tokenrow import MediaSpan, TokenRow, modality_of
from shardmill.tokens.visual.llava import Llava
from shardmill.tokens.visual.qwen import Qwen2VL, Qwen3VL, Qwen25VL
from shardmill.tokens.visual.rule import VisualRule

RULES: dict[str, VisualRule] = {
    "qwen2_vl": Qwen2VL(),
    "qwen2_5_vl": Qwen25VL(),
    "qwen3_vl": Qwen3VL(),
}
NUM_DOCUMENTS = 150


class RandomDocument:
    """Text and media in turn; a medium never touches another of its kind."""

    def __init__(self, rng: np.random.Generator, split_videos: bool) -> None:
        self.length = 0
        self.spans: list[MediaSpan] = []
        self.images: list[list[int]] = []
        self.videos: list[list[int]] = []
        self.length += int(rng.integers(0, 9))
        for _ in range(int(rng.integers(0, 5))):
            tall, wide = (2 * int(n) for n in rng.integers(1, 6, 2))
            if rng.random() < 0.5:
                self.images.append([1, tall, wide])
                self._span(rng, "image", 1, tall, wide)
                continue
            depth = int(rng.integers(1, 7))
            self.videos.append([depth, tall, wide])
            for _ in range(depth if split_videos else 1):
                self._span(rng, "video", 1 if split_videos else depth, tall, wide)
        self.seconds = [float(s) for s in rng.choice([0.5, 1.0, 0.33, 2.0], len(self.videos))]

    def _span(self, rng: np.random.Generator, kind: str, *grid: int) -> None:
        depth, tall, wide = grid
        count = depth * tall * wide // 4
        span = MediaSpan(
            name="m", kind=kind, position=self.length, num_tokens=count, grid=(depth, tall, wide)
        )
        self.spans.append(span)
        self.length += count + int(rng.integers(1, 9))

    def row(self) -> TokenRow:
        return row(self.length, *self.spans)


def row(length: int, *spans: MediaSpan) -> TokenRow:
    return TokenRow(key="k", ids=np.zeros(length, np.int64), media=spans)


@pytest.mark.parametrize("family", RULES)
def test_positions_equal_the_models_own(family: str) -> None:
    rng = np.random.default_rng(5)
    model = tiny_model(family).model
    ids = np.array([TEXT_IDS - 1, IMAGE_ID, VIDEO_ID])
    compared = 0
    while compared < NUM_DOCUMENTS:
        document = RandomDocument(rng, family == "qwen3_vl")
        ours = document.row()
        if not len(ours.ids):
            continue
        types = modality_of(ours.media, len(ours.ids)).astype(np.int64)
        seconds = document.seconds if rng.random() < 0.7 else []
        extra = {"second_per_grid_ts": seconds} if family == "qwen2_5_vl" and seconds else {}
        theirs, _ = model.get_rope_index(
            torch.from_numpy(ids[types])[None],
            torch.from_numpy(types)[None].int(),
            image_grid_thw=torch.tensor(document.images) if document.images else None,
            video_grid_thw=torch.tensor(document.videos) if document.videos else None,
            **extra,
        )
        found = RULES[family].positions(ours, seconds)
        np.testing.assert_array_equal(found, theirs[:, 0].numpy())
        compared += 1


def test_text_alone_moves_all_axes_together() -> None:
    assert Qwen2VL().positions(row(3)).tolist() == [[0, 1, 2]] * 3
    assert Qwen2VL().positions(row(0)).shape == (3, 0)


def test_other_families_count_plainly() -> None:
    span = MediaSpan(name="m", kind="image", position=1, num_tokens=4, grid=(1, 2, 2))
    assert Llava().positions(row(6, span)).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_grid_that_does_not_match_is_a_sample_error() -> None:
    span = MediaSpan(name="m", kind="image", position=0, num_tokens=5, grid=(1, 4, 4))
    with pytest.raises(SampleError, match="do not match their grid"):
        Qwen2VL().positions(row(5, span))
    assert Qwen2VL().positions(row(4, replace(span, num_tokens=4))).max() == 1
