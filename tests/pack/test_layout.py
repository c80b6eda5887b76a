"""The geometry of a pack, compared with a token-by-token count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.pack.layout import block_causal_mask, lay_out


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=6),
    alignment=st.integers(1, 5),
    spare=st.none() | st.integers(0, 7),
)
def test_every_place_is_what_counting_says(
    lengths: list[int], alignment: int, spare: int | None
) -> None:
    index, positions, values = [], [], []
    for number, length in enumerate(lengths, 1):
        padded = -(-length // alignment) * alignment
        index += [number] * padded
        positions += range(padded)
        values += [number] * length + [-7] * (padded - length)
    size = None if spare is None else len(index) + spare
    tail = [0] * (spare or 0)
    layout = lay_out(lengths, alignment=alignment, size=size)
    assert layout.index_mask().tolist() == index + tail
    assert layout.position_ids().tolist() == positions + tail
    parts = [np.full(length, number) for number, length in enumerate(lengths, 1)]
    placed = layout.place(parts, -7, np.int64)
    assert placed.tolist() == values + [-7] * len(tail)
    both = layout.place([np.stack([part, 2 * part]) for part in parts] or [], -7, np.int64)
    if lengths:
        assert both[0].tolist() == placed.tolist()
    assert layout.cu_seqlens().tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    assert layout.cu_seqlens_padded()[-1] == len(index)
    assert layout.max_seqlen == max((index.count(n) for n in set(index)), default=0)


def test_block_causal_mask_sees_only_its_own_past() -> None:
    mask = block_causal_mask(np.array([1, 1, 2, 2, 0]))
    assert mask.shape == (1, 5, 5)
    seen = {(q, k) for q, k in zip(*np.nonzero(mask[0]))}
    assert seen == {(0, 0), (1, 0), (1, 1), (2, 2), (3, 2), (3, 3)}


def test_documents_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="take 12 tokens, more than the 11"):
        lay_out([5, 6], alignment=6, size=11)
