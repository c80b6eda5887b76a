"""Many pairs at a time give what one pair after the other gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import DrawFn, booleans, composite, integers, sampled_from

from shardmill.errors import FormatError
from shardmill.formats.unidisc.read import paired_rows
from shardmill.model.space import TokenSpace

EOS = 2
SPACES = [
    TokenSpace(text_size=100, specials={"image": 7, "eos": EOS}, num_codes=50),
    TokenSpace(text_size=100, specials={"eos": EOS}, num_codes=50),
    TokenSpace(text_size=100_000, specials={"image": 7, "eos": EOS}, num_codes=50),
]


@composite
def tables(draw: DrawFn) -> dict[str, Any]:
    random = np.random.default_rng(draw(integers(0, 2**32)))
    count, width, num_codes = draw(integers(0, 5)), draw(integers(0, 9)), draw(integers(1, 4))
    mask = np.arange(width) < random.integers(0, width + 1, (count, 1))
    if draw(booleans()):
        mask = random.random((count, width)) < 0.5
    text = np.where(mask, random.integers(1, 4, (count, width)), -100)
    table = {
        "txt_input_ids": text.astype("int32"),
        "img_input_ids": random.integers(0, 50, (count, num_codes)).astype("int16"),
    }
    return {**table, "txt_attention_mask": mask} if draw(booleans()) else table


@given(table=tables(), space=sampled_from(SPACES), end=booleans(), roomy=booleans(), raw=booleans())
def test_a_pair_is_text_marker_codes_end(
    table: dict[str, Any], space: TokenSpace, end: bool, roomy: bool, raw: bool
) -> None:
    numbers = np.arange(len(table["img_input_ids"]))[::-1].copy()
    room = np.empty(100, space.dtype) if roomy else None
    flat = paired_rows(table, numbers, space, "raw" if raw else "shifted", room, end=end)
    wanted, marker = [], [7] * ("image" in space.names)
    for number in numbers.tolist():
        words = [id_ for id_ in table["txt_input_ids"][number].tolist() if id_ >= 0]
        words = words[:-1] if end and words[-1:] == [EOS] else words
        codes = table["img_input_ids"][number].astype(int) + (space.code_offset if raw else 0)
        wanted.append([*words, *marker, *codes.tolist(), *[EOS] * end])
    assert flat.lengths.tolist() == [len(row) for row in wanted]
    assert flat.ids.tolist() == [id_ for row in wanted for id_ in row]
    assert flat.ids.dtype == space.dtype
    num_codes = table["img_input_ids"].shape[1]
    position = [len(row) - end - num_codes for row in wanted]
    assert flat.media.columns["position"].tolist() == position
    assert flat.media.columns["before"].tolist() == [len(marker)] * len(wanted)


def test_a_code_that_is_none_is_refused() -> None:
    table = {"txt_input_ids": np.ones((1, 2), "int32"), "img_input_ids": np.array([[3, 50]])}
    with pytest.raises(FormatError, match="the code 50 in an image, the token space has 50"):
        paired_rows(table, np.array([0]), SPACES[0], "raw", end=True)
