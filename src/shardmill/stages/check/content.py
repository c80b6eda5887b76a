"""What finished shards hold, checked in parallel: tokens, packs or samples, by what they are.

A shard that cannot be read is a fault of that shard; all others are checked, and every one that is
wrong is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from shardmill.errors import SampleError, ShardmillError
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.shards.ledger import open_manifest
from shardmill.shards.plans import open_plan
from shardmill.shards.samples import Members, SampleShard, open_entry
from shardmill.shards.tokens.shard import ROLES, open_token_shard
from shardmill.stages.check.findings import Fault, Findings, Limits
from shardmill.stages.check.packs import check_pack, fields_of
from shardmill.stages.check.samples import check_sample
from shardmill.stages.check.specimens import space_of
from shardmill.stages.check.tokens import check_token_shard
from shardmill.storage.path import as_path

# A process takes half a second to begin: less than this is done sooner without.
BYTES_WORTH_A_PROCESS = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What one shard holds: counts by name, and the first of its faults."""

    name: str
    num_samples: int
    counts: Mapping[str, int]
    faults: tuple[Fault, ...]
    num_faults: int


@dataclass(frozen=True, slots=True)
class ContentReport:
    """What a folder holds, shard by shard in order."""

    shards: tuple[ShardReport, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The counts of all shards together."""
        total: Counter[str] = Counter()
        for shard in self.shards:
            total.update(shard.counts)
        return dict(total)

    @property
    def num_faults(self) -> int:
        """How many faults there are, listed or not."""
        return sum(shard.num_faults for shard in self.shards)


def check_content(folder: Path, limits: Limits | None = None, *, workers: int = 1) -> ContentReport:
    """Check the content of every shard of a finished folder."""
    manifest = open_manifest(folder)
    limits = _with_stage(folder, manifest, limits or Limits())
    check = partial(check_shard, folder, limits)
    workers = min(workers, len(manifest.shards), manifest.num_bytes // BYTES_WORTH_A_PROCESS)
    if workers < 2:
        return ContentReport(tuple(map(check, manifest.shards)))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        return ContentReport(tuple(pool.map(check, manifest.shards)))


def check_shard(folder: Path, limits: Limits, entry: ShardEntry) -> ShardReport:
    """Check one shard; what makes it unreadable is its fault."""
    findings = Findings()
    try:
        if "spans" in entry.files:
            files = {role: folder / entry.files[role].path for role in ROLES}
            findings = check_token_shard(open_token_shard(files), limits)
        elif "idx" in entry.files:
            _check_tar(folder, entry, limits, findings)
    except (ShardmillError, OSError) as error:
        findings.blame("", f"cannot be read: {error}")
    return ShardReport(
        name=entry.name,
        num_samples=entry.num_samples,
        counts=dict(findings.counts),
        faults=tuple(findings.faults),
        num_faults=findings.num_faults,
    )


def _check_tar(folder: Path, entry: ShardEntry, limits: Limits, findings: Findings) -> None:
    with open_entry(folder, entry) as shard:
        if shard.blob.mapped() is None and not limits.remote:
            findings.count("samples elsewhere", len(shard))
            return
        for key, members in _samples(shard):
            try:
                plain = fields_of(members)
            except SampleError as error:
                findings.blame(key, f"cannot be read: {error}")
                continue
            if plain is not None and "input_ids" in plain:
                check_pack(key, plain, members, limits, findings)
            else:
                check_sample(key, plain, members, pairs=limits.pairs, findings=findings)


def _samples(shard: SampleShard) -> Iterator[tuple[str, Members]]:
    """Yield key and members of each sample; of a mapped tar only what is looked at is read."""
    if shard.blob.mapped() is None:
        return shard.iter_raw()
    return ((shard.index.keys[number], shard.raw(number)) for number in range(len(shard)))


def _with_stage(folder: Path, manifest: Manifest, limits: Limits) -> Limits:
    """Return the limits with what the folder's own stage says: its longest row, its space."""
    stage = manifest.stage if isinstance(manifest.stage, dict) else {}
    longest, plan_path = stage.get("max_length"), stage.get("plan_path")
    if isinstance(plan_path, str) and as_path(plan_path).exists():
        longest = open_plan(as_path(plan_path)).spec.capacity
    if limits.max_tokens is None and isinstance(longest, int):
        limits = replace(limits, max_tokens=longest)
    return replace(limits, space=limits.space or space_of(folder, manifest))
