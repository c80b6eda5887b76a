"""Energon's index.sqlite: key and place of every sample and of every member.

The tables have Energon's columns. They are stored in the order in which they are asked for (by tar
and number), so that they need no index beside them: half the bytes, and rows are only appended.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from shardmill.errors import FormatError
from shardmill.formats.sqlitefile import UNGUARDED, filled_tables
from shardmill.formats.sqliterows import Values
from shardmill.formats.utf8 import is_utf8
from shardmill.io.atomic import made_file
from shardmill.io.index import ShardIndex
from shardmill.io.weave import between, texts

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
