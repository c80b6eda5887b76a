"""Images stand among text as each model family wants them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.model.space import TokenSpace
from shardmill.tokens.layout import LAYOUTS, ImageLayout, MediaBlock, bind_layout

SPACE = TokenSpace(
    text_size=100,
    specials={"image": 8, "row_end": 9, "grid": 10},
    added=("boi", "eoi", "im_patch", "im_start", "im_end"),
    num_codes=8,
)
CODES = np.arange(6).reshape(2, 3)


def flat(block: MediaBlock) -> list[list[int]]:
    return [part.tolist() for part in (block.before, block.body, block.after)]


def codes_block(layout: ImageLayout, codes: NDArray[Any] = CODES) -> list[list[int]]:
    return flat(bind_layout(layout, SPACE, SPACE.special).of_codes(codes))


def test_codes_between_delimiters() -> None:
    assert codes_block(LAYOUTS["codes"]) == [[100], [105, 106, 107, 108, 109, 110], [101]]


def test_codes_after_a_marker() -> None:
    assert codes_block(LAYOUTS["marker"]) == [[8], [105, 106, 107, 108, 109, 110], []]


def test_rows_end_and_sizes_stand_in_front() -> None:
    layout = ImageLayout(row_end="row_end", grid="grid")
    assert codes_block(layout) == [
        [100, 12, 13],
        [105, 106, 107, 9, 108, 109, 110, 9],
        [101],
    ]
    assert codes_block(ImageLayout(grid="grid", grid_step=2))[0] == [100, 11, 11]


def test_patches_are_a_fixed_number_of_placeholders() -> None:
    layout = bind_layout(LAYOUTS["patches"], SPACE, SPACE.special)
    block = layout.of_patches("image", 256, (1, 16, 16))
    assert flat(block) == [[103], [102] * 256, [104]] and not block.can_be_learned
    with pytest.raises(SampleError, match="empty image"):
        layout.of_patches("image", 0, (0, 0, 0))


def test_videos_may_have_their_own_placeholder() -> None:
    layout = ImageLayout(before=(), after=(), patch="im_patch", video_patch="image")
    bound = bind_layout(layout, SPACE, SPACE.special)
    assert flat(bound.of_patches("video", 2, (1, 1, 2)))[1] == [8, 8]
    assert flat(bound.of_patches("image", 2, (1, 1, 2)))[1] == [102, 102]


@pytest.mark.parametrize(
    "fields",
    [
        {"patch": "im_patch", "row_end": "row_end"},
        {"num_patches": 4},
        {"patch": "im_patch", "num_patches": 0},
        {"grid_step": 0},
    ],
)
def test_a_layout_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ImageLayout(**fields)


def test_a_name_that_the_space_lacks_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no token 'soi'"):
        bind_layout(ImageLayout(before=("soi",)), SPACE, SPACE.special)
    with pytest.raises(ConfigError, match=r"--space num_codes"):
        no_codes = TokenSpace(text_size=10, added=("boi", "eoi"))
        bind_layout(ImageLayout(), no_codes, no_codes.special)
