"""A finished folder of token shards, made without tokenizing anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from shardmill.io.receipts import Ledger
from shardmill.io.tokenfile import ROLES
from shardmill.io.tokenwrite import TokenWriter
from shardmill.model.lengths import LengthTable, length_table
from shardmill.model.manifest import FileEntry, Manifest, ShardEntry
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow

SPACE = TokenSpace(text_size=200)


def token_row(number: int, length: int) -> TokenRow:
    """Return a row whose ids tell its number; all but the first token carry loss."""
    ids = (np.arange(length) + number * 7) % 190 + 5
    loss = np.array([[1, length - 1]] if length > 1 else np.empty((0, 2)), np.int64)
    origin = Origin(source="made", path=f"raw-{number // 50}.jsonl", row=number)
    return TokenRow(key=f"sample-{number:05d}", ids=ids, loss=loss, origin=origin)


def write_token_folder(folder: Path, rows: Sequence[TokenRow], per_shard: int = 64) -> Path:
    """Write rows as shards with a manifest; returns the folder."""
    (folder / "shards").mkdir(parents=True)
    shards = []
    for start in range(0, len(rows), per_shard):
        name = f"{start // per_shard:06d}"
        paths = {role: folder / "shards" / f"{name}.{role}" for role in ROLES}
        with TokenWriter(paths.__getitem__, SPACE) as writer:
            for row in rows[start : start + per_shard]:
                writer.append(row)
        files = {role: _entry(path) for role, path in paths.items()}
        shards.append(ShardEntry(name, len(rows[start : start + per_shard]), files))
    write_manifest(folder, shards)
    return folder


def write_manifest(folder: Path, shards: Sequence[ShardEntry]) -> None:
    """Declare the folder complete."""
    total = sum(shard.num_samples for shard in shards)
    manifest = Manifest(
        stage={},
        stage_digest="0",
        units_digest="0",
        num_in=total,
        num_kept=total,
        skipped={},
        stats={},
        shards=tuple(shards),
    )
    ledger = Ledger(folder, "test")
    ledger.draft_dir.mkdir(parents=True)
    ledger.write_manifest(manifest)


def lengths_of(rows: Sequence[TokenRow]) -> LengthTable:
    """Return the table of these rows."""
    return length_table(
        [len(row.ids) for row in rows],
        num_visual=[row.num_visual for row in rows],
        num_fixed=[row.num_fixed for row in rows],
    )


def _entry(path: Path) -> FileEntry:
    content = path.read_bytes()
    return FileEntry(f"shards/{path.name}", len(content), xxhash.xxh3_64_hexdigest(content))
