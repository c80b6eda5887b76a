"""What is done: receipts, one for each unit, and the manifest that lists all their shards.

Neither holds a time, a host, a rank or a number of workers: the same input and spec give the same
bytes, wherever and however often they were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardmill.model.codec import Plain, digest
from shardmill.model.stage import Stage, Unit


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file by its path relative to the folder, its size and its xxh3-64 checksum in hex."""

    path: str
    num_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard: its name, how many samples it holds, and its files by role ("tar", "idx", ...)."""

    name: str
    num_samples: int
    files: Mapping[str, FileEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Proof that a unit is done; written last, believed by every reader."""

    unit: str
    digest: str
    num_in: int
    num_kept: int
    skipped: Mapping[str, int]
    shards: tuple[ShardEntry, ...]
    rejects: FileEntry | None = None
    stats: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A finished dataset: the spec that made it and its shards in unit order."""

    stage: Plain
    stage_digest: str
    units_digest: str
    num_in: int
    num_kept: int
    skipped: Mapping[str, int]
    stats: Mapping[str, int]
    shards: tuple[ShardEntry, ...]

    @property
    def num_samples(self) -> int:
        """All samples of all shards."""
        return sum(shard.num_samples for shard in self.shards)


def stage_digest(stage: Stage) -> str:
    """Return the identity of a stage: class, version and every field of its spec."""
    return digest({"stage": stage, "version": type(stage).version})


def receipt_digest(stage_digest: str, unit: Unit) -> str:
    """Return what a unit's receipt must carry to be valid for this stage and this input."""
    return digest([stage_digest, unit.digest])


def sum_books(receipts: Iterable[Receipt]) -> dict[str, Any]:
    """Return num_in, num_kept, skipped and stats added up over receipts."""
    skipped: Counter[str] = Counter()
    stats: Counter[str] = Counter()
    num_in = num_kept = 0
    for receipt in receipts:
        num_in += receipt.num_in
        num_kept += receipt.num_kept
        skipped.update(receipt.skipped)
        stats.update(receipt.stats)
    return {
        "num_in": num_in,
        "num_kept": num_kept,
        "skipped": dict(sorted(skipped.items())),
        "stats": dict(sorted(stats.items())),
    }
