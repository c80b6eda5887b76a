from __future__ import annotations

import random

import pytest
from hf_processors import transformers
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.tokens.visual.rule import choose_tiles, fit_area, fit_video, tilings

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


def test_tiles_equal_those_of_the_processor() -> None:
    transformers()
    from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

    rng = random.Random(0)
    for _ in range(5000):
        height, width = rng.randint(1, 3000), rng.randint(1, 3000)
        if rng.random() < 0.3:  # shapes that meet a tiling exactly are where ties happen
            unit = rng.randint(1, 700)
            height, width = unit * rng.randint(1, 4), unit * rng.randint(1, 4)
        fewest, most = rng.choice([(1, 12), (1, 6), (2, 9), (1, 40)])
        ours = choose_tiles(
            height, width, tile_height=448, tile_width=448, min_tiles=fewest, max_tiles=most
        )
        columns, rows = get_optimal_tiled_canvas((height, width), (448, 448), fewest, most)
        assert ours == (rows, columns)


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


def test_tilings_by_hand() -> None:
    assert tilings(1, 4) == ((1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (4, 1), (2, 2), (1, 4))
