"""Files are sound to the library, which finds the rows that were given and can go on with them."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, sampled_from

from shardmill.errors import ConfigError
from shardmill.formats.energon.index import LOCKED_BYTE, Pages, Values, filled_tables
from shardmill.shards.weave import texts

SCHEMA = """
CREATE TABLE named (part INTEGER, name TEXT, number INTEGER, PRIMARY KEY (part, number))
    WITHOUT ROWID;
CREATE TABLE bare (number INTEGER PRIMARY KEY) WITHOUT ROWID;
"""
Row = tuple[int, int, str]


def make_rows(part: int, count: int, longest: int, seed: int) -> list[Row]:
    random = np.random.default_rng([seed, part])
    numbers = np.cumsum(random.integers(1, 100, count)) - 50
    lengths = random.integers(0, longest + 1, count)
    return [(part, int(n), chr(97 + int(n) % 26) * int(k)) for n, k in zip(numbers, lengths)]


def columns_of(rows: Sequence[Row]) -> list[Values]:
    parts, numbers, names = zip(*rows) if rows else ((), (), ())
    return [
        np.array(parts, np.int64),
        np.array(numbers, np.int64),
        texts([name.encode() for name in names]),
    ]


def write(path: Path, batches: Sequence[Sequence[Row]], page_size: int = 512) -> None:
    with filled_tables(path, SCHEMA, page_size) as tables:
        for part, batch in enumerate(batches):
            tables["named"].append(columns_of(batch))
            tables["bare"].append([np.arange(3) + 3 * part])


def ask(path: Path, *statements: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database, database:
        return [database.execute(statement).fetchall() for statement in statements]


def check(path: Path, rows: Sequence[Row]) -> None:
    query = "SELECT part, number, name FROM named ORDER BY part, number"
    sound, found = ask(path, "PRAGMA integrity_check", query)
    assert sound == [("ok",)]
    assert found == list(rows)


def num_levels(path: Path, page_size: int) -> int:
    """Follow the first children from the root of the first table."""
    content = path.read_bytes()
    [[(page,)]] = ask(path, "SELECT rootpage FROM sqlite_master WHERE name = 'named'")
    depth = 1
    while content[(page - 1) * page_size] == 2:
        at = (page - 1) * page_size
        [place] = struct.unpack_from(">H", content, at + 12)
        [page] = struct.unpack_from(">I", content, at + place)
        depth += 1
    return depth


@settings(max_examples=40)
@given(
    counts=lists(integers(0, 900), max_size=4),
    longest=sampled_from([0, 9, 80]),
    page_size=sampled_from([512, 1024, 4096]),
    seed=integers(0, 1000),
)
def test_the_library_finds_every_row(
    counts: list[int], longest: int, page_size: int, seed: int
) -> None:
    batches = [make_rows(part, count, longest, seed) for part, count in enumerate(counts)]
    rows = [row for batch in batches for row in batch]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path, batches, page_size)
        check(path, rows)
        assert ask(path, "SELECT number FROM bare") == [[(n,) for n in range(3 * len(counts))]]
        with closing(sqlite3.connect(path)) as database:
            query = "SELECT name FROM named WHERE part = ? AND number = ?"
            for part, number, name in rows[::7]:
                assert database.execute(query, (part, number)).fetchall() == [(name,)]
            [plan] = database.execute(f"EXPLAIN QUERY PLAN {query}", (0, 0)).fetchall()
        assert "SEARCH named USING PRIMARY KEY (part=? AND number=?)" in plan[-1]


@settings(max_examples=25)
@given(
    count=integers(0, 900),
    longest=sampled_from([0, 80]),
    touched=lists(integers(0, 40_000), max_size=60, unique=True),
    seed=integers(0, 1000),
)
def test_the_library_can_go_on_with_the_pages(
    count: int, longest: int, touched: list[int], seed: int
) -> None:
    rows = make_rows(0, count, longest, seed)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path, [rows])
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE INDEX by_name ON named (name, number)")
            gone = {number % 500 for number in touched}
            database.executemany("DELETE FROM named WHERE abs(number) % 500 = ?", zip(gone))
            added = [(0, number, "new" * (number % 30)) for number in touched]
            database.executemany("REPLACE INTO named (part, number, name) VALUES (?, ?, ?)", added)
        kept = {row[1]: row for row in rows if abs(row[1]) % 500 not in gone}
        kept |= {row[1]: row for row in added}
        check(path, sorted(kept.values()))


@pytest.mark.parametrize(("count", "levels"), [(0, 1), (1, 1), (20, 1), (60, 2), (3000, 3)])
def test_tables_have_as_many_levels_as_they_need(tmp_path: Path, count: int, levels: int) -> None:
    rows = make_rows(0, count, 9, 0)
    write(tmp_path / "file", [rows])
    check(tmp_path / "file", rows)
    assert num_levels(tmp_path / "file", 512) == levels


def test_batches_do_not_show(tmp_path: Path) -> None:
    rows = make_rows(0, 2000, 30, 0)
    write(tmp_path / "many", [rows[start : start + 7] for start in range(0, len(rows), 7)])
    check(tmp_path / "many", rows)
    write(tmp_path / "one", [rows])
    sizes = [(tmp_path / name).stat().st_size for name in ("many", "one")]
    assert sizes[0] < 1.1 * sizes[1]


def test_a_row_that_would_go_on_elsewhere_is_refused(tmp_path: Path) -> None:
    # A row has eight bytes beside its text.
    write(tmp_path / "fits", [[(0, 0, "a" * 94), (0, 1, "b")]])
    check(tmp_path / "fits", [(0, 0, "a" * 94), (0, 1, "b")])
    with pytest.raises(ConfigError, match=r"table named has 110 bytes, more than the 102"):
        write(tmp_path / "long", [[(0, 0, "a" * 102)]])


def test_bytes_that_are_for_others_stay_theirs(tmp_path: Path) -> None:
    path = tmp_path / "file"
    ask(path, "PRAGMA page_size = 512", "PRAGMA user_version = 1", "VACUUM")
    content = bytearray(path.read_bytes())
    # Without tables, page 1 is a leaf without cells, and its cells begin where it ends.
    content[20] = 12
    content[105:107] = struct.pack(">H", 500)
    path.write_bytes(content)
    rows = make_rows(0, 900, 30, 0)
    write(path, [rows])
    check(path, rows)
    assert path.read_bytes()[20] == 12


def test_the_page_that_is_locked_is_left_out(tmp_path: Path) -> None:
    size, locked = 4096, LOCKED_BYTE // 4096 + 1
    head = bytes(28) + struct.pack(">I", locked - 3) + bytes(68)
    with (tmp_path / "file").open("w+b") as file:
        pages = Pages(file.fileno(), size, head)
        found = [pages.append(np.repeat(np.arange(n, dtype=np.uint8), size)) for n in (1, 3, 2)]
        pages.finish()
        numbers = np.concatenate(found).tolist()
        assert numbers == [locked + n for n in (-2, -1, 1, 2, 3, 4)]
        first = [os.pread(file.fileno(), 1, (number - 1) * size)[0] for number in numbers]
        assert first == [0, 0, 1, 2, 0, 1]
        assert os.pread(file.fileno(), 4, 28) == struct.pack(">I", locked + 4)
        assert file.seek(0, 2) == (locked + 4) * size
