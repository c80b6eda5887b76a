"""Pages hold all cells in order, but for those that go up; none is too full and none empty."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import DrawFn, composite, integers, lists, sampled_from

from shardmill.formats.energon.index import (
    INNER,
    LEAF,
    PageForm,
    cells_above,
    page_bounds,
    woven_pages,
)
from shardmill.shards.weave import texts
from shardmill.storage.background import Room

FORMS = sampled_from(
    [
        PageForm(kind, size, taken)
        for kind in (LEAF, INNER)
        for size, taken in ((512, 0), (1024, 12))
    ]
)


@composite
def forms_and_cells(draw: DrawFn) -> tuple[PageForm, list[bytes]]:
    form = draw(FORMS)
    longest = form.max_row + form.child_bytes
    lengths = draw(lists(integers(form.child_bytes + 4, longest), min_size=1, max_size=60))
    return form, [bytes([number]) * length for number, length in enumerate(lengths)]


def read_page(form: PageForm, page: bytes) -> tuple[bytes, list[bytes]]:
    """Return the last child, and the cells."""
    kind, free, count, first, lost = struct.unpack(">BHHHB", page[:8])
    assert (kind, free, lost) == (form.kind, 0, 0)
    head = 8 + form.child_bytes
    places = [
        *struct.unpack(f">{count}H", page[head : head + 2 * count]),
        form.size - form.reserved,
    ]
    assert places[0] == first >= head + 2 * count
    assert not any(page[head + 2 * count : first]) and not any(page[places[-1] :])
    return page[8:head], [page[start:end] for start, end in pairwise(places)]


@given(forms_and_cells())
def test_pages_hold_the_cells_between_those_that_go_up(
    given: tuple[PageForm, list[bytes]],
) -> None:
    form, contents = given
    cells = texts(contents)
    bounds = page_bounds(form, cells)
    assert bounds[0] == 0 and bounds[-1] == len(contents)
    # What is left in a page when its last cell is gone.
    assert (np.diff(bounds)[:-1] > 1).all() and bounds[-2] < bounds[-1]
    pages = woven_pages(form, cells, bounds, Room()).tobytes()
    above = cells_above(form, cells, bounds, np.arange(7, 6 + len(bounds)))
    assert len(pages) == form.size * len(above)
    for number, (first, last) in enumerate(zip(bounds, bounds[1:] - 1)):
        page = pages[number * form.size : (number + 1) * form.size]
        cut = contents[last]
        assert read_page(form, page) == (cut[: form.child_bytes], contents[first:last])
        assert bytes(above[number]) == struct.pack(">I", number + 7) + cut[form.child_bytes :]


@given(forms_and_cells())
def test_the_last_page_has_room_for_all_its_cells(given: tuple[PageForm, list[bytes]]) -> None:
    form, contents = given
    first, end = page_bounds(form, texts(contents))[-2:]
    assert sum(len(cell) + 2 for cell in contents[first:end]) <= form.room_for_cells


@pytest.mark.parametrize(("size", "longest"), [(512, 102), (4096, 1002), (16384, 4086)])
def test_the_longest_row_is_that_of_the_format(size: int, longest: int) -> None:
    assert PageForm(LEAF, size).max_row == longest
