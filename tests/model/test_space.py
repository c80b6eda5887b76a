"""Ids of text, control tokens and codes never meet, and a reader that disagrees is told so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError, SampleError
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.space import TokenSpace


@given(
    text_size=st.integers(1, 10**6), num_added=st.integers(0, 5), num_codes=st.integers(1, 10**5)
)
def test_text_added_and_codes_share_no_id(text_size: int, num_added: int, num_codes: int) -> None:
    added = tuple(f"token{i}" for i in range(num_added))
    space = TokenSpace(text_size=text_size, added=added, num_codes=num_codes)
    codes = space.code_ids(np.array([0, num_codes - 1])).tolist()
    used = [text_size - 1, *(space.special(name) for name in added), codes[0]]
    assert used == list(range(text_size - 1, text_size + num_added + 1))
    assert codes[-1] == space.size - 1
    assert space.local_codes(np.array(codes)).tolist() == [0, num_codes - 1]
    assert space.dtype.itemsize == (2 if space.size <= 65_536 else 4)
    assert from_plain(to_plain(space), TokenSpace) == space


def test_the_dtype_is_the_smallest_that_holds_the_last_id() -> None:
    assert TokenSpace(text_size=65_536).dtype == np.dtype("<u2")
    assert TokenSpace(text_size=65_537).dtype == np.dtype("<i4")
    assert TokenSpace(text_size=10, padded_size=65_537).dtype == np.dtype("<i4")


def test_published_layouts() -> None:
    unidisc = TokenSpace(text_size=32_001, specials={"image": 811}, num_codes=16_384)
    assert (unidisc.code_offset, unidisc.size) == (32_001, 48_385)
    liquid = TokenSpace(text_size=256_000, specials={"boi": 7, "eoi": 8}, num_codes=8192)
    assert (liquid.code_offset, liquid.size) == (256_000, 264_192)
    assert liquid.dtype == np.dtype("<i4")
    video = TokenSpace(text_size=32_000, added=("im_patch", "im_start", "im_end"))
    assert [video.special(n) for n in video.added] == [32_000, 32_001, 32_002]
    emu3 = TokenSpace(text_size=151_854, codes_at=151_854, num_codes=32_768)
    assert emu3.size == 184_622


def test_a_code_outside_the_codebook_is_refused_and_code_0_is_not() -> None:
    space = TokenSpace(text_size=10, num_codes=4)
    assert space.code_ids(np.array([0, 0])).tolist() == [10, 10]
    assert space.code_ids(np.array([], np.int64)).tolist() == []
    for bad in ([-1], [4]):
        with pytest.raises(SampleError, match="out of range"):
            space.code_ids(np.array(bad))


def test_readers_are_checked() -> None:
    space = TokenSpace(text_size=1000, num_codes=24)
    space.check_tokenizer(1000)
    with pytest.raises(ConfigError, match="1001 ids"):
        space.check_tokenizer(1001)
    with pytest.raises(ConfigError, match="num_codes: 24 -> 25"):
        space.check_same(TokenSpace(text_size=1000, num_codes=25))
    space.check_same(TokenSpace(text_size=1000, num_codes=24))


@pytest.mark.parametrize(
    "fields",
    [
        {"text_size": 0},
        {"text_size": 10, "num_codes": -1},
        {"text_size": 10, "num_codes": 5, "specials": {"boi": 12}},
        {"text_size": 10, "specials": {"boi": -1}},
        {"text_size": 10, "added": ("boi", "boi")},
        {"text_size": 10, "added": ("boi",), "specials": {"boi": 3}},
        {"text_size": 10, "num_codes": 5, "padded_size": 14},
        {"text_size": 2**31 + 1},
        {"text_size": 10, "codes_at": -1},
    ],
)
def test_a_space_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        TokenSpace(**fields)  # type: ignore[arg-type]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="it has boi, eoi"):
        TokenSpace(text_size=10, added=("boi", "eoi")).special("image")


def test_ids_of_text_are_neither_codes_nor_named() -> None:
    ids = np.array([5, 9, 200])
    TokenSpace(text_size=300, specials={"boi": 7}, num_codes=100).check_text(ids)
    TokenSpace(text_size=300, num_codes=100, codes_at=10).check_text(ids)  # as in Chameleon's
    with pytest.raises(ConfigError, match=r"id 200 for text, and image codes .* 150 to 249.* 300"):
        TokenSpace(text_size=300, num_codes=100, codes_at=150).check_text(ids)
    with pytest.raises(ConfigError, match="id 9 for text, which --space names 'boi'"):
        TokenSpace(text_size=300, specials={"boi": 9}).check_text(ids)
