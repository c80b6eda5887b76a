"""Finished shards as the input of a stage: a unit for each, opened by its files.

Most stages read sample shards (`sample_units`, `open_unit`); those that take what there is, such as
`remove` and `diff`, open a shard of samples, codes or tokens with `open_content`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import xxhash

from shardmill.errors import ConfigError, FormatError
from shardmill.model.codec import Plain
from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import MediaSize, Sample
from shardmill.model.stage import Unit
from shardmill.shards.codes import ROLE as CODES
from shardmill.shards.codes import CodeShard, open_codes
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleShard
from shardmill.shards.tar.index import TarIndex, open_tar_index
from shardmill.shards.tokens.shard import ROLES as TOKEN_ROLES
from shardmill.shards.tokens.shard import TokenShard, open_token_shard
from shardmill.storage.blob import open_blob

MANIFEST_NAME = "manifest.json"
ContentShard: TypeAlias = TarIndex | CodeShard | TokenShard
SIZE_COLUMNS = ("width", "height", "num_frames", "fps", "duration_s")


class SizedSample(NamedTuple):
    """A sample, and the size of each of its media by name: what a shard stores."""

    sample: Sample
    sizes: Mapping[str, MediaSize]


def sample_units(
    folder: Path, limit: int | None, more: Mapping[str, Plain] | None = None
) -> Iterator[Unit]:
    """Yield a unit for each shard in the order of the manifest, up to `limit` samples in all."""
    manifest = open_manifest(folder)
    if manifest.content != "samples":
        raise ConfigError(f"{folder} holds {manifest.content}, no samples")
    left = limit
    for shard in manifest.shards:
        files: dict[str, Plain] = {r: [e.path, e.checksum] for r, e in shard.files.items()}
        input: dict[str, Plain] = {"files": files, **(more or {})}
        count = shard.num_samples
        if left is not None:
            if left <= 0:
                return
            count = min(count, left)
            left -= count
            input["limit"] = count
        yield Unit(name=shard.name, input=input, num_samples=count)


def shards_hold_bytes(folder: Path) -> bool:
    """Say whether every tar lies beside its index: the checksums do not speak of one elsewhere."""
    return all("tar" in shard.files for shard in open_manifest(folder).shards)


def sample_inputs(folder: Path, used: Iterable[Path] = ()) -> dict[str, list[int | str]]:
    """Return the fingerprint of a folder's manifest, and of the files that decide what is made."""
    manifest = folder / MANIFEST_NAME
    if not manifest.exists():
        open_manifest(folder)  # says what is missing and what to do
    return fingerprint_of([manifest, *used])


def fingerprint_of(paths: Iterable[Path]) -> dict[str, list[int | str]]:
    """Return path -> [size, mtime_ns] of files that must be there.

    Of a manifest it is [size, checksum]: a folder that was repaired has the manifest that it had,
    written again, and what was made from it is as fresh as before.
    """
    try:
        return {str(path): _stamp(path) for path in paths}
    except OSError as error:
        raise ConfigError(f"cannot read what decides the result: {error}") from error


def _stamp(path: Path) -> list[int | str]:
    if path.name == MANIFEST_NAME:
        content = path.read_bytes()
        return [len(content), xxhash.xxh3_64_hexdigest(content)]
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def open_unit(folder: Path, unit: Unit) -> SampleShard:
    """Open the shard of a unit; a tar may lie elsewhere, its index says where."""
    files: Any = unit.input["files"]
    paths = {role: folder / path for role, (path, _) in files.items()}
    index = open_tar_index(paths["idx"])
    url = str(paths["tar"]) if "tar" in paths else index.url
    if url is None:
        raise FormatError("names no tar, and none lies beside it", path=paths["idx"])
    return SampleShard(open_blob(url), index)


def files_of(folder: Path, shard: ShardEntry) -> dict[str, Path]:
    """Return role -> path of the files of a shard."""
    return {role: folder / entry.path for role, entry in shard.files.items()}


def open_content(files: Mapping[str, Path]) -> ContentShard:
    """Open a shard of samples (its index), codes or tokens; all of them have `keys`.

    Files that are none of these, such as those of an export, are a `ConfigError`.
    """
    if "spans" in files:
        return open_token_shard({role: files[role] for role in TOKEN_ROLES})
    if CODES in files:
        return open_codes(files[CODES])
    if "idx" in files:
        return open_tar_index(files["idx"])
    names = ", ".join(sorted(path.name for path in files.values()))
    raise ConfigError(f"a shard of {names} holds no samples, codes or tokens")


def media_sizes(index: TarIndex) -> Callable[[int], dict[str, MediaSize]]:
    """Return the lookup of what a sample's index knows of its media."""
    columns = [index.column(name).tolist() for name in SIZE_COLUMNS]
    exts, ext, first = index.exts, index.ext, index.first

    def sizes_of(number: int) -> dict[str, MediaSize]:
        return {
            exts[ext[m]]: MediaSize(**{n: column[m] for n, column in zip(SIZE_COLUMNS, columns)})
            for m in range(first[number], first[number + 1])
        }

    return sizes_of
