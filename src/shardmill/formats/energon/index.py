"""Energon's index.sqlite: the key and place of every sample and of every member of its tars.

    samples       tar_file_id, sample_key, sample_index, byte_offset, byte_size
    sample_parts  tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size

Rows are written in the order of their primary keys, which appends to both tables, and the unique
index over the keys is made last, by one sort. Until the file is whole and has its name, nobody
reads it, so there is no journal.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from shardmill.errors import FormatError
from shardmill.shards.tar.index import TarIndex
from shardmill.storage.files import made_file

SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -64000;
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER,
    PRIMARY KEY (tar_file_id, sample_index)) WITHOUT ROWID;
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
    content_byte_size INTEGER,
    PRIMARY KEY (tar_file_id, sample_index, content_byte_offset)) WITHOUT ROWID;
BEGIN;
"""
ADD_SAMPLE = "INSERT INTO samples VALUES (?, ?, ?, ?, ?)"
ADD_PART = "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)"
UNIQUE_KEYS = "CREATE UNIQUE INDEX samples_by_key ON samples(sample_key)"
TWICE = """
SELECT sample_key, min(tar_file_id), max(tar_file_id) FROM samples
GROUP BY sample_key HAVING count(*) > 1 LIMIT 1
"""


def write_index(path: Path, tars: Iterable[TarIndex]) -> None:
    """Write the index of these tars, at once or not at all.

    A key that two samples have, or that is not UTF-8, is a `FormatError` that names the tar.
    """
    with made_file(path) as draft_path:
        try:
            # Autocommit, so that BEGIN and COMMIT stand where we put them.
            with closing(sqlite3.connect(draft_path, isolation_level=None)) as database:
                database.executescript(SCHEMA)
                places = [_add_tar(database, number, index) for number, index in enumerate(tars)]
                database.execute("COMMIT")
                _add_keys(database, places)
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"cannot write: {error}", str(path)) from error


def _add_tar(database: sqlite3.Connection, tar: int, index: TarIndex) -> Path:
    try:
        database.executemany(ADD_SAMPLE, _samples(tar, index))
        database.executemany(ADD_PART, _parts(tar, index))
    except UnicodeEncodeError as error:
        raise FormatError("a key is not UTF-8, as texts must be", path=index.arrays.path) from error
    except sqlite3.IntegrityError as error:
        raise FormatError("two members lie at the same byte", path=index.arrays.path) from error
    return index.arrays.path


def _samples(tar: int, index: TarIndex) -> Iterator[tuple[int, str, int, int, int]]:
    starts = index.arrays["start"].astype(np.int64)
    places = zip(index.keys, starts.tolist(), np.diff(starts).tolist())
    return ((tar, key, number, start, size) for number, (key, start, size) in enumerate(places))


def _parts(tar: int, index: TarIndex) -> Iterator[tuple[int, int, str, int, int]]:
    counts = np.diff(index.arrays["first"].astype(np.int64))
    owners = np.repeat(np.arange(len(index)), counts).tolist()
    columns = (index.arrays[name].tolist() for name in ("ext", "offset", "size"))
    exts = index.exts
    return (
        (tar, owner, exts[ext], offset, size) for owner, ext, offset, size in zip(owners, *columns)
    )


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
