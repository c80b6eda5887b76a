"""The length table of a folder: stored, or of token shards, exact, from the indexes alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shardmill.io.lengths import open_lengths
from shardmill.io.receipts import open_manifest
from shardmill.io.tokenfile import TokenShard
from shardmill.io.tokenset import open_token_set
from shardmill.model.lengths import LengthTable, join_tables, length_table

TABLE_NAME = "lengths.bin"
NO_TOKENS = "no tokens"
UNKNOWN_SOURCE = "unknown"


def read_lengths(path: Path) -> LengthTable:
    """Return the table of a file, of a folder of `measure`, or of a folder of token shards."""
    if path.is_file():
        return open_lengths(path)
    if (path / TABLE_NAME).is_file():
        return open_lengths(path / TABLE_NAME)
    return token_lengths(path)


def token_lengths(folder: Path) -> LengthTable:
    """Return the lengths of all rows of a finished folder, in manifest order."""
    tokens = open_token_set(folder, open_manifest(folder))
    tables = [
        shard_lengths(entry.name, tokens.shard(number))
        for number, entry in enumerate(tokens.entries)
    ]
    return join_tables(tables) if tables else length_table(np.empty(0, np.int32))


def shard_lengths(name: str, shard: TokenShard) -> LengthTable:
    """Return the lengths of one shard; a row without tokens is rejected with that reason."""
    # Files of origin count from 1, sources of files from 0; source 0 here is "unknown".
    source_of_file = np.concatenate([[0], shard.columns["origin_source"].astype(np.int64) + 1])
    return length_table(
        shard.lengths,
        num_visual=shard.num_visual.astype(np.int32),
        num_fixed=shard.num_fixed.astype(np.int32),
        source=source_of_file[shard.columns["origin_file"]],
        source_names=[UNKNOWN_SOURCE, *shard.spans.meta["sources"]],
        reject=shard.lengths == 0,
        reject_reasons=[NO_TOKENS],
        shard_names=[name],
        shard_starts=[0, len(shard)],
    )
