from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.shards.tar import members
from shardmill.shards.tar.members import PlainMemberTable

EXTS = ("json", "jpg", "0.png")
TABLES = [PlainMemberTable] + ([members._members.MemberTable] if members._members else [])


def columns(samples: list[list[int]], gap: int) -> tuple[Any, ...]:
    """Return the columns of samples whose members have these sizes, with a gap before each."""
    sizes = [size for sample in samples for size in sample]
    offsets = [start + gap for start in accumulate((size + gap for size in sizes), initial=0)]
    exts = [number % len(EXTS) for sample in samples for number in range(len(sample))]
    first = list(accumulate(map(len, samples), initial=0))
    return (
        np.array(first, np.uint64).data,
        np.array(offsets[:-1], np.uint64).data,
        np.array(sizes, np.uint64).data,
        np.array(exts, np.uint16).data,
        EXTS,
    )


SAMPLES = st.lists(st.lists(st.integers(0, 9000), min_size=1, max_size=3), min_size=1, max_size=6)


@pytest.mark.parametrize("table", TABLES)
@settings(max_examples=60, deadline=None)
@given(samples=SAMPLES, gap=st.integers(0, 600), base=st.integers(0, 600))
def test_members_are_the_bytes_at_their_places(
    table: Any, samples: list[list[int]], gap: int, base: int
) -> None:
    made = columns(samples, gap)
    tar = np.random.default_rng(1).bytes(sum(map(sum, samples)) + gap * len(made[1]) + 1)
    base = min(base, gap)
    chunk, cut = memoryview(tar)[base:], table(*made)
    for number, sizes in enumerate(samples):
        first = made[0][number]
        wanted = {
            EXTS[i]: tar[made[1][first + i] : made[1][first + i] + size]
            for i, size in enumerate(sizes)
        }
        views, copies = cut.views(number, chunk, base), cut.copies(number, chunk, base)
        assert copies == wanted
        assert list(copies) == list(views) == list(wanted)
        assert all(type(view) is memoryview and view.obj is tar for view in views.values())
        assert all(type(content) is bytes for content in copies.values())
        assert {ext: bytes(view) for ext, view in views.items()} == wanted


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("number", [-1, 2, 1 << 40])
def test_a_number_outside_the_tar_is_an_index_error(table: Any, number: int) -> None:
    cut = table(*columns([[3], [4]], 0))
    with pytest.raises(IndexError, match="of 2"):
        cut.views(number, memoryview(b"1234567"), 0)


@pytest.mark.skipif(len(TABLES) == 1, reason="the compiled table is not built")
def test_the_compiled_table_reads_nothing_outside_its_memory() -> None:
    first, offset, size, ext, exts = columns([[3], [4]], 0)
    make, chunk = TABLES[-1], memoryview(b"1234567")
    with pytest.raises(IndexError, match="outside"):
        make(first, offset, size, ext, exts).copies(1, chunk[:6], 0)
    with pytest.raises(IndexError, match="outside"):
        make(first, offset, size, ext, exts).copies(0, chunk, 1)
    with pytest.raises(IndexError, match="extension"):
        make(first, offset, size, ext, ()).views(0, chunk, 0)
    beyond = np.array([0, 1, 1 << 50], np.uint64).data
    with pytest.raises(IndexError):
        make(beyond, offset, size, ext, exts).views(1, chunk, 0)
    with pytest.raises(ValueError, match="differ"):
        make(first, offset, size[:1], ext, exts)
    with pytest.raises(TypeError):
        make(first, offset, size, ext)
    with pytest.raises(IndexError):
        make.__new__(make).views(0, chunk, 0)
