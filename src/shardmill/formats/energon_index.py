"""Energon's index.sqlite: key and place of every sample and of every member.

The tables have Energon's columns. They are stored in the order in which they are asked for (by tar
and number), so that they need no index beside them: half the bytes, and rows are only appended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.io.atomic import made_file
from shardmill.io.index import ShardIndex

# Until it is whole and named, nobody reads the file, so that nothing must be undone.
UNGUARDED = "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
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
# Sorted at the end, which is faster than to find the place of each key when it comes.
UNIQUE_KEYS = "CREATE UNIQUE INDEX samples_by_key ON samples(sample_key)"
# Every SQLite takes 999 values in a statement; a row each costs three times as much.
ROWS_AT_ONCE = 200


def write_index(path: Path, tars: Iterable[ShardIndex]) -> None:
    """Write the file, at once or not at all."""
    with made_file(path) as draft_path:
        try:
            _write(draft_path, tars)
        except sqlite3.Error as error:
            raise OSError(f"cannot write {path}: {error}") from error


def _write(path: Path, tars: Iterable[ShardIndex]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(UNGUARDED + SCHEMA)
        database.execute("BEGIN")
        for tar, index in enumerate(tars):
            _insert(database, f"INSERT INTO samples VALUES ({tar}, ?, ?, ?, ?)", _samples(index))
            _insert(database, f"INSERT INTO sample_parts VALUES ({tar}, ?, ?, ?, ?)", _parts(index))
        database.execute(UNIQUE_KEYS)
        database.execute("COMMIT")


def _samples(index: ShardIndex) -> list[list[Any]]:
    starts = index.arrays["start"].astype(np.int64)
    numbers = list(range(len(index)))
    return [list(index.keys), numbers, starts[:-1].tolist(), np.diff(starts).tolist()]


def _parts(index: ShardIndex) -> list[list[Any]]:
    counts = np.diff(index.arrays["first"].astype(np.int64))
    owners = np.repeat(np.arange(len(index)), counts).tolist()
    names = np.array(index.exts, object)[index.arrays["ext"]].tolist()
    return [owners, names, index.offset.tolist(), index.size.tolist()]


def _insert(database: sqlite3.Connection, statement: str, columns: Sequence[list[Any]]) -> None:
    """Insert rows that are given by columns, many with each statement."""
    width, num_rows = len(columns), len(columns[0])
    values: list[Any] = [None] * (width * num_rows)
    for number, column in enumerate(columns):
        values[number::width] = column
    head, _, row = statement.partition(" VALUES ")
    step = width * ROWS_AT_ONCE
    whole = len(values) - len(values) % step
    many = f"{head} VALUES {', '.join([row] * ROWS_AT_ONCE)}"
    database.executemany(many, (values[at : at + step] for at in range(0, whole, step)))
    database.executemany(statement, zip(*[iter(values[whole:])] * width))
