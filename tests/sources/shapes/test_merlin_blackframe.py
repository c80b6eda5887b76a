from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.media.image.decode import decode_image
from shardmill.media.sizes import probe
from shardmill.sources.shapes.merlin import black_frame


@given(st.integers(1, 900), st.integers(1, 900))
@settings(max_examples=30)
def test_it_is_black_and_of_its_size(width: int, height: int) -> None:
    content = black_frame(width, height)
    found = probe("image", content)
    assert (found.ext, found.size.width, found.size.height) == ("png", width, height)
    pixels = decode_image(content)
    assert pixels.shape == (height, width, 3) and not pixels.any()


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (1 << 20, 1 << 20)])
def test_absurd_sizes_are_rejects(size: tuple[int, int]) -> None:
    with pytest.raises(SampleError, match="bad size of a black frame"):
        black_frame(*size)
