"""A finished folder of token shards, made without tokenizing anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import xxhash

from shardmill.io.receipts import Ledger
from shardmill.io.tokenwrite import TokenWriter
from shardmill.model.manifest import FileEntry, Manifest, ShardEntry
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow

SPACE = TokenSpace(text_size=1000)


def write_token_folder(
    folder: Path, shards: Sequence[Sequence[TokenRow]], space: TokenSpace = SPACE
) -> Path:
    """Write each list of rows as one shard; returns the folder."""
    (folder / "shards").mkdir(parents=True)
    entries = []
    for number, rows in enumerate(shards):
        name = f"{number:05d}"
        with TokenWriter(
            lambda role, name=name: folder / "shards" / f"{name}.{role}", space
        ) as out:  # type: ignore[misc]
            for row in rows:
                out.append(row)
        files = {role: _entry(folder, f"{name}.{role}") for role in ("bin", "idx", "spans")}
        entries.append(ShardEntry(name, len(rows), files))
    num_rows = sum(map(len, shards))
    manifest = Manifest(
        stage={},
        stage_digest="0",
        units_digest="0",
        num_in=num_rows,
        num_kept=num_rows,
        skipped={},
        stats={},
        shards=tuple(entries),
    )
    ledger = Ledger(folder, "test")
    ledger.draft_dir.mkdir(parents=True)
    ledger.write_manifest(manifest)
    return folder


def _entry(folder: Path, name: str) -> FileEntry:
    content = (folder / "shards" / name).read_bytes()
    return FileEntry(f"shards/{name}", len(content), xxhash.xxh3_64_hexdigest(content))
