"""A finished folder of sample shards, made without ingesting anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import xxhash

from shardmill.io.receipts import Ledger
from shardmill.io.samples import SampleWriter
from shardmill.model.manifest import FileEntry, Manifest, ShardEntry
from shardmill.model.sample import MediaSize, Sample
from shardmill.model.stage import Draft

Rows = Sequence[tuple[Sample, Mapping[str, MediaSize]]]


def write_sample_folder(folder: Path, shards: Sequence[Rows]) -> Path:
    """Write samples with the media sizes their index shall have; returns the folder."""
    (folder / "shards").mkdir(parents=True)
    draft = Draft(folder / "shards")
    for number, rows in enumerate(shards):
        with SampleWriter(draft, lambda _, number=number: f"{number:06d}") as writer:  # type: ignore[misc]
            for sample, sizes in rows:
                writer.add(sample, sizes)
    num_samples = sum(map(len, shards))
    manifest = Manifest(
        stage={},
        stage_digest="0",
        units_digest="0",
        num_in=num_samples,
        num_kept=num_samples,
        skipped={},
        stats={},
        shards=tuple(
            ShardEntry(
                shard.name,
                shard.num_samples or 0,
                {role: _entry(folder, f"{shard.name}.{role}") for role in shard.roles},
            )
            for shard in draft.shards.values()
        ),
    )
    ledger = Ledger(folder, "test")
    ledger.draft_dir.mkdir(parents=True)
    ledger.write_manifest(manifest)
    return folder


def _entry(folder: Path, name: str) -> FileEntry:
    content = (folder / "shards" / name).read_bytes()
    return FileEntry(f"shards/{name}", len(content), xxhash.xxh3_64_hexdigest(content))
