from __future__ import annotations

import random
from typing import Any

import pytest
from hf_processors import compare, internvl_processor, transformers

from shardmill.errors import ConfigError, SampleError
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.internvl import InternVL, choose_tiles, tilings


def random_image(rng: random.Random) -> MediaSize:
    return MediaSize(width=rng.randint(3, 300), height=rng.randint(3, 300))


def film(rng: random.Random) -> MediaSize:
    # The processor stacks the videos of one call, so all have one number of frames.
    return MediaSize(width=30, height=20, num_frames=12, fps=25.0)


@pytest.fixture(scope="module")
def processor() -> Any:
    return internvl_processor()


@pytest.mark.parametrize("num_frames", [None, 5])
def test_internvl_equals_its_processor(num_frames: int | None, processor: Any) -> None:
    rule = InternVL(tile_size=28, tokens_per_tile=4, max_tiles=6, num_frames=num_frames)
    settings = {"num_frames": num_frames, "do_sample_frames": num_frames is not None}
    compare(rule, processor, image=random_image, video=film, settings=settings, num_chats=200)


def test_one_tile_has_no_thumbnail() -> None:
    small = InternVL().count("image", MediaSize(width=500, height=500))
    wide = InternVL().count("image", MediaSize(width=1000, height=500))
    assert (small.num_visual, small.grid) == (256, (1, 1, 1))
    assert (wide.num_visual, wide.grid) == (3 * 256, (1, 1, 2))
    assert (
        InternVL(crop_to_tiles=False).count("image", MediaSize(width=9, height=3)).num_visual == 256
    )


def test_bad_settings_and_videos_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_tiles"):
        InternVL(min_tiles=9, max_tiles=4)
    with pytest.raises(ConfigError, match="num_frames"):
        InternVL(num_frames=0)
    with pytest.raises(SampleError, match="too few frames"):
        InternVL(num_frames=8).count("video", MediaSize(num_frames=7))
    with pytest.raises(SampleError, match="too many frames"):
        InternVL().count("video", MediaSize(num_frames=100_000))
    with pytest.raises(SampleError, match="takes no audio"):
        InternVL().count("audio", MediaSize())


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
        ours = choose_tiles(height, width, tile_size=448, min_tiles=fewest, max_tiles=most)
        columns, rows = get_optimal_tiled_canvas((height, width), (448, 448), fewest, most)
        assert ours == (rows, columns)


def test_tilings_by_hand() -> None:
    assert tilings(1, 4) == ((1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (4, 1), (2, 2), (1, 4))
