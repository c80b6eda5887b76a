"""What finished shards hold: every sample, row and pack checked, and images decoded on request.

A shard that cannot be read is a fault of that shard; all others are checked, and every one that is
wrong is named. Nothing before training decodes an image, so that one whose end is missing is found
nowhere else: loaders that forgive it show grey instead. `check_decoding` finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError, ShardmillError
from shardmill.media.image.decode import decode_image
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.shards.ledger import open_manifest
from shardmill.shards.plans import open_plan
from shardmill.shards.samples import Members, SampleShard, entry_index, open_entry
from shardmill.shards.tar.index import TarIndex
from shardmill.shards.tokens.shard import ROLES, open_token_shard
from shardmill.sources.part import media_kind
from shardmill.stages.check.findings import ContentFault, Findings, Limits
from shardmill.stages.check.specimens import space_of
from shardmill.stages.check.tars import check_pack, check_sample, fields_of
from shardmill.stages.check.tokens import check_token_shard
from shardmill.storage.path import as_path

# A process takes half a second to begin: less than this is done sooner without.
BYTES_WORTH_A_PROCESS = 32 << 20
MAX_LISTED = 1000
# As many images are in memory at once.
BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What one shard holds: counts by name, and the first of its faults."""

    name: str
    num_samples: int
    counts: Mapping[str, int]
    faults: tuple[ContentFault, ...]
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


@dataclass(frozen=True, slots=True)
class BrokenImage:
    """An image that cannot be decoded, where its bytes begin, and why."""

    tar: str
    key: str
    medium: str
    offset: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport:
    """How many of a folder's images were decoded, and the first of those that are broken."""

    num_images: int
    num_decoded: int
    num_broken: int
    broken: tuple[BrokenImage, ...]


def check_decoding(folder: Path, count: int, *, workers: int = 1) -> DecodeReport:
    """Decode `count` images of a finished folder, spread evenly, or all if there are fewer."""
    manifest = open_manifest(folder)
    if any("idx" not in shard.files or "spans" in shard.files for shard in manifest.shards):
        raise ConfigError(f"{folder} holds neither codes nor samples: there is nothing to decode")
    # Counted first, and listed again later: the places of all images may not fit into memory.
    counts = [len(_images(entry_index(folder, entry))) for entry in manifest.shards]
    chosen = _spread(sum(counts), count)
    found = list(_broken(folder, manifest, counts, chosen, max(1, workers)))
    return DecodeReport(
        num_images=sum(counts),
        num_decoded=len(chosen),
        num_broken=len(found),
        broken=tuple(found[:MAX_LISTED]),
    )


def _spread(total: int, count: int) -> NDArray[np.int64]:
    """Return `count` of the numbers below `total`, as evenly as can be; each once."""
    if count >= total:
        return np.arange(total)
    return np.arange(count, dtype=np.int64) * total // count


def _broken(
    folder: Path,
    manifest: Manifest,
    counts: Sequence[int],
    chosen: NDArray[np.int64],
    workers: int,
) -> Iterator[BrokenImage]:
    bounds = np.cumsum([0, *counts])
    with ThreadPoolExecutor(workers) as pool:  # decoders leave Python's lock
        for entry, first, last in zip(manifest.shards, bounds, bounds[1:]):
            inside = chosen[(chosen >= first) & (chosen < last)] - first
            if not len(inside):
                continue
            with open_entry(folder, entry) as shard:
                yield from _broken_in(shard, _images(shard.index)[inside], pool)


def _broken_in(
    shard: SampleShard, members: NDArray[np.intp], pool: ThreadPoolExecutor
) -> Iterator[BrokenImage]:
    index = shard.index
    for start in range(0, len(members), BATCH):
        batch = members[start : start + BATCH].tolist()
        places = [(index.offset[member], index.size[member]) for member in batch]
        problems = pool.map(_problem, shard.blob.view_all(places))
        for member, (offset, _), problem in zip(batch, places, problems):
            if problem is not None:
                sample = int(np.searchsorted(index.arrays["first"], member, side="right")) - 1
                medium = index.exts[index.ext[member]]
                key = index.keys[sample]
                yield BrokenImage(shard.blob.url, key, medium, offset, problem)


def _problem(content: memoryview) -> str | None:
    try:
        decode_image(content)
    except SampleError as error:
        return str(error)
    return None


def _images(index: TarIndex) -> NDArray[np.intp]:
    """Return the numbers of the members that are images by their names."""
    wanted = [number for number, ext in enumerate(index.exts) if media_kind(ext) == "image"]
    return np.flatnonzero(np.isin(index.arrays["ext"], wanted))
