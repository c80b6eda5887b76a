"""Energon's index.sqlite: key and place of every sample and of every member.

The tables have Energon's columns. They are stored in the order in which they are asked for (by tar
and number), so that they need no index beside them: half the bytes, and rows are only appended.

Pages of an SQLite table WITHOUT ROWID, woven from the cells of its rows, many at once.

A table is a tree of pages, with the cells (see sqliterows.py) in the order of its primary key.
Pages count from 1, numbers are big-endian:

    leaf    u8 10, u16 0, u16 number of cells, u16 place of the first one, u8 0;
            u16 place of each cell; zeros; the cells, and bytes that are for others
    inner   u8 2, and so on up to u8 0; u32 page of the last child; then as in a leaf, with the u32
            page of the child that comes before it in front of each cell

A cell is in one page only: the one between two leaves is in the inner page above them, and the one
between two inner pages above those. So on each level the last cell that a page would have is cut
off: it goes up, with the number of the page in front, and its own child is the last of the page.

Rows of an SQLite table as the cells that its pages hold, many at once.

A cell is a varint that counts the bytes after it, and the row. That is a header, which is a varint
that counts its own bytes and a varint for the type of each column, and then the values:

    type 1, 2, 4, 6   whole number of 1, 2, 4, 8 bytes, signed, big-endian
    type 13 + 2n      text of n bytes

A number may be longer than it must be. So a column of numbers has one width in all rows of a batch,
and what lies between two texts is a table. Varints have seven bits a byte, the highest first, and
all bytes but the last have the eighth bit; here they have one byte or two.

New SQLite files whose tables are filled in bulk, with no statement and no step a row.

The library makes a file of empty tables. Rows become cells (sqliterows.py) and cells become pages
(sqlitepages.py), which are written behind each other as soon as they are full; in the end the root
of each table replaces its empty page, and the u32 at byte 28 of the file says how many pages there
are. The u8 at byte 20 counts the bytes of each page that are for others. The page with byte 2^30 is
left out: the library locks that byte.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.rows import is_utf8
from shardmill.shards.tar.index import ShardIndex
from shardmill.shards.weave import Column, between, cells, constant, filling, texts, weave
from shardmill.storage.atomic import made_file, write_at
from shardmill.storage.background import Room

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


# By row: numbers, which all have one width, or texts.
Values: TypeAlias = NDArray[Any] | Column

TYPE_OF_WIDTH = {1: 1, 2: 2, 4: 4, 8: 6}
FIRST_TEXT = 13
ONE_BYTE = 1 << 7  # numbers below take a varint of one byte


def row_cells(columns: Sequence[Values], room: Room | None = None) -> Column:
    """Return the cells of rows that are given by columns, of which there are less than 60."""
    num_rows = len(columns[0])
    values = [column if isinstance(column, Column) else _narrowed(column) for column in columns]
    types = [_types(column) for column in values]
    header = np.full(num_rows, 1 + sum(map(_widths, types)))
    payload = header + sum(map(_widths, values))
    pieces = [_varints(payload), header.astype(np.uint8), *types, *values]
    return weave(list(_joined(pieces)), room)


def _narrowed(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return numbers in the fewest bytes that hold all of them."""
    low, high = int(numbers.min()), int(numbers.max())
    for width in (1, 2, 4):
        if -(1 << 8 * width - 1) <= low and high < 1 << 8 * width - 1:
            return numbers.astype(f">i{width}")
    return numbers.astype(">i8")


def _types(values: Values) -> Values:
    if isinstance(values, Column):
        return _varints(FIRST_TEXT + 2 * values.lengths)
    return np.full(len(values), TYPE_OF_WIDTH[values.itemsize], np.uint8)


def _varints(numbers: NDArray[np.int64]) -> Values:
    """Return numbers below 16384 as varints."""
    is_long = numbers >= ONE_BYTE
    if not is_long.any():
        return numbers.astype(np.uint8)
    both = np.stack([numbers // ONE_BYTE | ONE_BYTE, numbers % ONE_BYTE], axis=1)
    wide = cells(both.astype(np.uint8))
    return Column(wide.data, wide.starts + ~is_long, 1 + is_long.astype(np.int64))


def _widths(values: Values) -> Any:
    return values.lengths if isinstance(values, Column) else values.itemsize


def _joined(pieces: Sequence[Values]) -> Iterator[Column]:
    """Yield the pieces as few columns: numbers that follow each other are one table."""
    numbers: list[NDArray[Any]] = []
    for piece in pieces:
        if not isinstance(piece, Column):
            numbers.append(piece)
            continue
        if numbers:
            yield _table(numbers)
        numbers = []
        yield piece
    if numbers:
        yield _table(numbers)


def _table(numbers: Sequence[NDArray[Any]]) -> Column:
    named = {str(place): column for place, column in enumerate(numbers)}
    table = np.empty(len(numbers[0]), [(name, column.dtype) for name, column in named.items()])
    for name, column in named.items():
        table[name] = column
    return cells(table[:, None])


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


SCHEMA = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER,
    PRIMARY KEY (tar_file_id, sample_index)) WITHOUT ROWID;
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
    content_byte_size INTEGER,
    PRIMARY KEY (tar_file_id, sample_index, content_byte_offset)) WITHOUT ROWID;
"""
# Sorted in so much memory, or else on the disk.
SORTER_MEMORY = "PRAGMA cache_size = -64000;"
UNIQUE_KEYS = "CREATE UNIQUE INDEX samples_by_key ON samples(sample_key)"
TWICE = """
SELECT sample_key, min(tar_file_id), max(tar_file_id) FROM samples
GROUP BY sample_key HAVING count(*) > 1 LIMIT 1
"""


def write_index(path: Path, tars: Iterable[ShardIndex]) -> None:
    """Write the file, at once or not at all."""
    with made_file(path) as draft_path:
        try:
            _write(draft_path, tars)
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"cannot write: {error}", str(path)) from error


def _write(path: Path, tars: Iterable[ShardIndex]) -> None:
    places = []
    with filled_tables(path, SCHEMA) as tables:
        for tar, index in enumerate(tars):
            tables["samples"].append(_samples(tar, index))
            tables["sample_parts"].append(_parts(tar, index))
            places.append(index.arrays.path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(UNGUARDED + SORTER_MEMORY)
        _add_keys(database, places)


def _add_keys(database: sqlite3.Connection, places: Sequence[Path]) -> None:
    try:
        database.execute(UNIQUE_KEYS)
    except sqlite3.IntegrityError as error:
        key, first, last = database.execute(TWICE).fetchone()
        raise FormatError(
            f"has key {key!r}, which {places[first]} has already, and Energon finds samples by "
            "their keys: leave out one of the two, or give it another key",
            path=places[last],
        ) from error


def _samples(tar: int, index: ShardIndex) -> Sequence[Values]:
    """Return the columns of a tar's samples, in the order in which they are stored."""
    starts = index.arrays["start"].astype(np.int64)
    data, bounds = index.arrays["key_bytes"], index.arrays["key_bounds"].astype(np.int64)
    if not is_utf8(data, bounds[:-1]):
        raise FormatError("a key is not UTF-8, as texts must be", path=index.arrays.path)
    numbers = np.arange(len(index))
    tars = np.full(len(index), tar)
    return [tars, numbers, between(data, bounds), starts[:-1], np.diff(starts)]


def _parts(tar: int, index: ShardIndex) -> Sequence[Values]:
    """Return the columns of a tar's members, in the order in which they are stored."""
    offsets, sizes = (index.arrays[name].astype(np.int64) for name in ("offset", "size"))
    if (offsets[1:] <= offsets[:-1]).any():
        raise FormatError("two members lie at the same byte", path=index.arrays.path)
    owners = np.repeat(np.arange(len(index)), np.diff(index.arrays["first"].astype(np.int64)))
    exts = texts([ext.encode() for ext in index.exts]).taken(index.arrays["ext"])
    return [np.full(len(offsets), tar), owners, offsets, exts, sizes]
