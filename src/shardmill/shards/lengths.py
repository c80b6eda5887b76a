"""Length tables: as files, and the exact one of a folder of token shards.

A file is the container of `shards.arrays` with the format name "lengths". Arrays: `num_tokens` i32,
then those of `num_visual` i32, `num_fixed` i32, `source` u16 and `reject` u8 that are not zero
everywhere, and `shard_starts` i64. Meta: `source_names`, `reject_reasons`, `shard_names`, `exact`,
`digest`. The arrays are mapped, not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.model.lengths import COLUMNS, MAX_SAMPLES, LengthTable, join_tables, length_table
from shardmill.shards.arrays import Arrays, open_arrays, store_arrays
from shardmill.shards.tokens.shard import TokenShard, open_tokens

FORMAT = "lengths"
TABLE_NAME = "lengths.bin"
NO_TOKENS = "no tokens"
UNKNOWN_SOURCE = "unknown"
DTYPES = {
    "num_tokens": "<i4",
    "num_visual": "<i4",
    "num_fixed": "<i4",
    "source": "<u2",
    "reject": "|u1",
}


def write_lengths(path: Path, table: LengthTable) -> None:
    """Put the table at `path`, whole or not at all."""
    arrays = {name: getattr(table, name) for name in COLUMNS}
    stored = {n: a for n, a in arrays.items() if n == "num_tokens" or a.any()}
    meta = {
        "source_names": list(table.source_names),
        "reject_reasons": list(table.reject_reasons),
        "shard_names": list(table.shard_names),
        "exact": table.exact,
        "digest": table.digest,
    }
    store_arrays(path, FORMAT, {**stored, "shard_starts": table.shard_starts}, meta)


def open_lengths(path: Path) -> LengthTable:
    """Map a table; its shape is checked, its rows are checked by whoever plans with them."""
    arrays = open_arrays(path, FORMAT)
    size = len(arrays["num_tokens"])
    if size > MAX_SAMPLES:
        raise FormatError(f"has {size} rows, more than one plan can number", path=path)
    columns = {name: _column(arrays, name, size) for name in COLUMNS}
    starts = arrays["shard_starts"]
    names = _names(arrays, "shard_names")
    if starts.dtype != np.int64 or starts.shape != (len(names) + 1,):
        raise FormatError("its shard_starts do not match its shard_names", path=path)
    exact, digest = arrays.meta.get("exact"), arrays.meta.get("digest")
    if not isinstance(exact, bool) or not isinstance(digest, str):
        raise FormatError("lacks 'exact' or 'digest' in its meta", path=path)
    return LengthTable(
        **columns,
        source_names=_names(arrays, "source_names"),
        reject_reasons=_names(arrays, "reject_reasons"),
        shard_names=names,
        shard_starts=starts,
        exact=exact,
        digest=digest,
    )


def read_lengths(path: Path) -> LengthTable:
    """Return the table of a file, of a folder of `measure`, or of a folder of token shards."""
    if path.is_file():
        return open_lengths(path)
    if (path / TABLE_NAME).is_file():
        return open_lengths(path / TABLE_NAME)
    return token_lengths(path)


def token_lengths(folder: Path) -> LengthTable:
    """Return the lengths of all rows of a finished folder, in manifest order."""
    tokens = open_tokens(folder)
    tables = [
        shard_lengths(entry.name, tokens.shard(number))
        for number, entry in enumerate(tokens.entries)
    ]
    return join_tables(tables) if tables else length_table(np.empty(0, np.int32))


def shard_lengths(name: str, shard: TokenShard) -> LengthTable:
    """Return the lengths of one shard; a row without tokens is rejected with that reason."""
    return length_table(
        shard.lengths,
        num_visual=shard.num_visual.astype(np.int32),
        num_fixed=shard.num_fixed.astype(np.int32),
        source=shard.source_numbers,
        source_names=[UNKNOWN_SOURCE, *shard.source_names[1:]],
        reject=shard.lengths == 0,
        reject_reasons=[NO_TOKENS],
        shard_names=[name],
        shard_starts=[0, len(shard)],
    )


def _column(arrays: Arrays, name: str, size: int) -> NDArray[Any]:
    dtype = np.dtype(DTYPES[name])
    if name not in arrays.arrays:
        return np.broadcast_to(np.zeros((), dtype), size)
    column = arrays[name]
    if column.dtype != dtype or column.shape != (size,):
        raise FormatError(
            f"array {name!r} must be {dtype.str} with {size} rows, "
            f"got {column.dtype.str} {column.shape}",
            path=arrays.path,
        )
    return column


def _names(arrays: Arrays, name: str) -> tuple[str, ...]:
    names = arrays.meta.get(name)
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise FormatError(f"its meta {name!r} must be a list of names", path=arrays.path)
    return tuple(names)
