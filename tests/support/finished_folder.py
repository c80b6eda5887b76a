"""Declares shards that a test wrote by hand a finished folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import xxhash

from shardmill.model.codec import Plain
from shardmill.model.manifest import FileEntry, Manifest, ShardEntry
from shardmill.shards.ledger import Ledger


def shard_entry(folder: Path, name: str, num_samples: int, roles: Iterable[str]) -> ShardEntry:
    """Return the entry of a shard whose files lie in the folder."""
    files = {role: _file_entry(folder, f"{name}.{role}") for role in roles}
    return ShardEntry(name, num_samples, files)


def finish_folder(folder: Path, shards: Sequence[ShardEntry], stage: Plain = None) -> Path:
    """Write the manifest of a folder that skipped nothing; returns the folder."""
    num_samples = sum(shard.num_samples for shard in shards)
    roles = {role for shard in shards for role in shard.files}
    content = "codes" if "codes" in roles else "tokens" if "spans" in roles else "samples"
    manifest = Manifest(
        content=content,
        stage={} if stage is None else stage,
        stage_digest="0",
        units_digest="0",
        num_in=num_samples,
        num_kept=num_samples,
        skipped={},
        stats={},
        shards=tuple(shards),
    )
    ledger = Ledger(folder, "test")
    ledger.make_drafts()
    ledger.write_manifest(manifest)
    return folder


def _file_entry(folder: Path, name: str) -> FileEntry:
    content = (folder / "shards" / name).read_bytes()
    return FileEntry(f"shards/{name}", len(content), xxhash.xxh3_64_hexdigest(content))
