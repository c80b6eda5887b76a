"""New SQLite files whose tables are filled in bulk, with no statement and no step a row.

The library makes a file of empty tables. Rows become cells (sqliterows.py) and cells become pages
(sqlitepages.py), which are written behind each other as soon as they are full; in the end the root
of each table replaces its empty page, and the u32 at byte 28 of the file says how many pages there
are. The u8 at byte 20 counts the bytes of each page that are for others. The page with byte 2^30 is
left out: the library locks that byte.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.formats.sqlitepages import (
    INNER,
    LEAF,
    NUMBER,
    PageForm,
    cells_above,
    page_bounds,
    woven_pages,
)
from shardmill.formats.sqliterows import Values, row_cells
from shardmill.io.pieces import write_at
from shardmill.io.room import Room
from shardmill.io.weave import Column, between, texts

# Until it is whole and named, nobody reads the file, so that nothing must be undone.
UNGUARDED = "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
ROOTS = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"
PAGE_SIZE = 4096
FILE_HEAD = 100
RESERVED_AT = 20
NUM_PAGES_AT = 28
LOCKED_BYTE = 1 << 30


@contextmanager
def filled_tables(
    path: Path, schema: str, page_size: int = PAGE_SIZE
) -> Iterator[dict[str, Table]]:
    """Make a file with the tables of a schema, all WITHOUT ROWID, and yield them to be filled.

    Pages have 512 to 16384 bytes.
    """
    settings = f"PRAGMA page_size = {page_size}; PRAGMA auto_vacuum = NONE;"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(settings + UNGUARDED + schema)
        roots = dict(database.execute(ROOTS))
    with path.open("r+b", buffering=0) as file:
        pages = Pages(file.fileno(), page_size, file.read(FILE_HEAD))
        tables = {name: Table(name, root, pages) for name, root in roots.items()}
        yield tables
        for table in tables.values():
            table.finish()
        pages.finish()


class Table:
    """A table that grows at its end; of each level no more than a page is in memory."""

    def __init__(self, name: str, root: int, pages: Pages) -> None:
        self._name, self._root, self._pages = name, root, pages
        self._levels = [_Level(pages, LEAF)]
        self._room = Room()

    def append(self, columns: Sequence[Values]) -> None:
        """Add rows, given by columns: those of the primary key first, then the others.

        The first column has numbers, and the primary key rises from row to row.
        """
        if not len(columns[0]):
            return
        rows = row_cells(columns, self._room)
        longest, limit = int(rows.lengths.max()), self._pages.form(LEAF).max_row
        if longest > limit:
            raise ConfigError(
                f"a row of the table {self._name} has {longest:,} bytes, more than the {limit:,} "
                "that fit into a page: its texts must be shorter"
            )
        self._add(0, rows)

    def _add(self, depth: int, added: Column) -> None:
        if depth == len(self._levels):
            self._levels.append(_Level(self._pages, INNER))
        above = self._levels[depth].add(added)
        if len(above):
            self._add(depth + 1, above)

    def finish(self) -> None:
        """Write the last page of each level; the last of the highest, its only one, is the root."""
        child = b""
        for level in self._levels[:-1]:
            [number] = self._pages.append(level.last_page(child))
            child = int(number).to_bytes(NUMBER)
        self._pages.put(self._root, self._levels[-1].last_page(child))


class _Level:
    """The pages of a table that are equally far from its root; those that are full are written."""

    def __init__(self, pages: Pages, kind: int) -> None:
        self._pages, self._form = pages, pages.form(kind)
        self._waiting = texts([])

    def add(self, added: Column) -> Column:
        """Add cells, and return those for the level above."""
        waiting = _one_after_another(self._waiting, added)
        bounds = page_bounds(self._form, waiting)[:-1]
        numbers = self._pages.append(self._woven(waiting, bounds))
        self._waiting = _from(waiting, int(bounds[-1]))
        return cells_above(self._form, waiting, bounds, numbers)

    def last_page(self, child: bytes) -> NDArray[np.uint8]:
        """Return the page of the cells that wait; `child` is the number of its last child."""
        # In place of the cell that other pages lose.
        waiting = _one_after_another(self._waiting, texts([child]))
        return self._woven(waiting, np.array([0, len(waiting)]))

    def _woven(self, waiting: Column, bounds: NDArray[np.int64]) -> NDArray[np.uint8]:
        return woven_pages(self._form, waiting, bounds, self._pages.room)


class Pages:
    """The pages of a file; `room` is for those that are written next."""

    def __init__(self, descriptor: int, size: int, file_head: bytes) -> None:
        self.room = Room()
        self._descriptor, self._size = descriptor, size
        self._reserved = file_head[RESERVED_AT]
        self._num_used = int.from_bytes(file_head[NUM_PAGES_AT : NUM_PAGES_AT + NUMBER])
        self._locked = LOCKED_BYTE // size + 1

    def form(self, kind: int) -> PageForm:
        """Return how pages of this kind look here."""
        return PageForm(kind, self._size, self._reserved)

    def append(self, pages: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Write pages behind all others, and return their numbers."""
        used = self._num_used + np.arange(1, len(pages) // self._size + 1)
        self._num_used += len(used)
        numbers = used + (used >= self._locked)
        cut = int((used < self._locked).sum())
        for first, part in ((0, pages[: cut * self._size]), (cut, pages[cut * self._size :])):
            if len(part):
                self.put(int(numbers[first]), part)
        return numbers

    def put(self, number: int, pages: NDArray[np.uint8]) -> None:
        """Write pages to their place, of which the first has this number."""
        write_at(self._descriptor, pages.data, (number - 1) * self._size)

    def finish(self) -> None:
        """Write how many pages there are."""
        num_pages = self._num_used + (self._num_used >= self._locked)
        write_at(self._descriptor, memoryview(num_pages.to_bytes(NUMBER)), NUM_PAGES_AT)


def _one_after_another(first: Column, second: Column) -> Column:
    data = np.concatenate([first.data, second.data])
    lengths = np.concatenate([first.lengths, second.lengths])
    return between(data, np.concatenate([[0], np.cumsum(lengths)]))


def _from(column: Column, row: int) -> Column:
    # Copied, so that the rows before it take no memory.
    start = column.starts[row]
    return Column(column.data[start:].copy(), column.starts[row:] - start, column.lengths[row:])
