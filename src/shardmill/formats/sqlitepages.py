"""Pages of an SQLite table WITHOUT ROWID, woven from the cells of its rows, many at once.

A table is a tree of pages, with the cells (see sqliterows.py) in the order of its primary key.
Pages count from 1, numbers are big-endian:

    leaf    u8 10, u16 0, u16 number of cells, u16 place of the first one, u8 0;
            u16 place of each cell; zeros; the cells, and bytes that are for others
    inner   u8 2, and so on up to u8 0; u32 page of the last child; then as in a leaf, with the u32
            page of the child that comes before it in front of each cell

A cell is in one page only: the one between two leaves is in the inner page above them, and the one
between two inner pages above those. So on each level the last cell that a page would have is cut
off: it goes up, with the number of the page in front, and its own child is the last of the page.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.io.room import Room
from shardmill.io.weave import Column, cells, constant, filling, weave

LEAF, INNER = 10, 2
NUMBER, PLACE = 4, 2  # bytes of a page's number, and of a cell's place in its page
HEAD = np.dtype(
    [("kind", "u1"), ("free", ">u2"), ("count", ">u2"), ("first", ">u2"), ("lost", "u1")]
)


@dataclass(frozen=True, slots=True)
class PageForm:
    """How pages look: LEAF or INNER, of so many bytes, some of which are for others."""

    kind: int
    size: int
    reserved: int = 0

    @property
    def child_bytes(self) -> int:
        """What stands in front of a cell."""
        return NUMBER if self.kind == INNER else 0

    @property
    def room_for_cells(self) -> int:
        """The bytes for cells and their places."""
        return self.size - self.reserved - HEAD.itemsize - self.child_bytes

    @property
    def max_row(self) -> int:
        """The longest row that is not continued elsewhere; four of them fit into each page."""
        return (self.size - self.reserved - 12) * 64 // 255 - 23


def page_bounds(form: PageForm, given: Column) -> NDArray[np.int64]:
    """Return the first cell of each page, and the number of all cells.

    A page takes the cells that end in its window, and all windows have one length. Since its first
    cell may begin before it, a window is shorter than the room of a page by the longest cell.
    """
    sizes = given.lengths + PLACE
    ends = np.cumsum(sizes)
    window = form.room_for_cells - int(sizes.max())
    inner = np.searchsorted(ends, np.arange(window, ends[-1], window), side="right")
    return np.concatenate([[0], inner, [len(given)]])


def woven_pages(
    form: PageForm, given: Column, bounds: NDArray[np.int64], room: Room
) -> NDArray[np.uint8]:
    """Return the pages of the cells between each two bounds, without the last of them.

    The cells lie one after the other in their data.
    """
    firsts, lasts = bounds[:-1], bounds[1:] - 1
    starts, ends = given.starts[firsts], given.starts[lasts]
    counts, num_bytes, usable = lasts - firsts, ends - starts, form.size - form.reserved
    heads = np.zeros(len(firsts), HEAD)
    heads["kind"], heads["count"], heads["first"] = form.kind, counts, usable - num_bytes
    # Counted from the end of a page, a cell lies where it lies before the end of the page's cells.
    places = usable - np.repeat(ends, np.diff(bounds)) + given.starts[: bounds[-1]]
    columns = [
        cells(heads[:, None]),
        Column(given.data, ends, np.full(len(ends), form.child_bytes)),
        Column(places.astype(">u2").view(np.uint8), PLACE * firsts, PLACE * counts),
        filling(form.room_for_cells - PLACE * counts - num_bytes),
        Column(given.data, starts, num_bytes),
        constant(bytes(form.reserved), len(firsts)),
    ]
    return weave(columns, room).data


def cells_above(
    form: PageForm, given: Column, bounds: NDArray[np.int64], pages: NDArray[np.int64]
) -> Column:
    """Return the cells that were cut off, each behind the number of its page."""
    cut = given.taken(bounds[1:] - 1)
    rows = Column(cut.data, cut.starts + form.child_bytes, cut.lengths - form.child_bytes)
    return weave([cells(pages.astype(">u4")[:, None]), rows])
