"""Codes among ids, counted from 0 or as the model sees them."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.formats.unidisc.codespace import is_code, make_raw, num_ids
from shardmill.model.space import TokenSpace

SPACES = [
    TokenSpace(text_size=32_000, added=("image",), num_codes=16_384),
    TokenSpace(text_size=65_000, num_codes=256, specials={"last": 65_500}),
    TokenSpace(text_size=65_536, num_codes=8192, codes_at=4),
    TokenSpace(text_size=151_000, num_codes=8192),
    TokenSpace(text_size=65_536),
]


@pytest.mark.parametrize("space", SPACES)
def test_codes_are_those_that_the_space_says(space: TokenSpace) -> None:
    edges = [0, 4, space.code_offset, space.code_offset + space.num_codes - 1, space.size - 1]
    tokens = sorted({t + d for t in edges for d in (-1, 0, 1) if 0 <= t + d < space.size})
    ids = np.array(tokens, space.dtype)
    codes = is_code(ids, space)
    assert codes.tolist() == [space.is_code(token) for token in tokens]
    make_raw(ids, codes, space)
    wanted = [token - space.code_offset * space.is_code(token) for token in tokens]
    assert ids.tolist() == wanted
    assert max(wanted) < num_ids(space, "raw") <= num_ids(space, "shifted") == space.size
