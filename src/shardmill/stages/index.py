"""Indexes foreign tars where they lie: one unit and one `.idx` for each tar, nothing is copied.

Only headers are read, by range requests where a tar is remote; with `media_sizes` also the first
bytes of images, videos and audio. A medium whose header cannot be read has size 0 in the index
and is counted; a sample that cannot be addressed is a reject.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import xxhash

from shardmill.errors import ConfigError, SampleError
from shardmill.media.header import probe
from shardmill.model.codec import PlaceName, Plain, RootName
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.shards.arrays import Arrays, write_arrays
from shardmill.shards.tar.index import IndexRows
from shardmill.shards.tar.read import Grouped, group_members, walk_tar
from shardmill.sources.source import (
    Listed,
    fingerprint,
    list_files,
    media_kind,
    size_or_tag,
    stamp,
)
from shardmill.sources.tars import tar_stem
from shardmill.stages.inputs import PASSED_OVER
from shardmill.storage.blob import Blob, open_blob
from shardmill.storage.path import as_path, is_remote

REMOTE_HEAD_BYTES = 256 << 10  # holds the headers of all but odd files, for one request each


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTars:
    """The spec: tars by path, folder, glob, braces or url.

    `interleaved` groups `K.json` with `K-0.jpg`, `K-1.jpg`, ... (see `shards.tar.grouping`).
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "samples"

    tars: tuple[PlaceName, ...]
    interleaved: bool = True
    media_sizes: bool = False
    allow: tuple[RootName, ...] = ()

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return the tars."""
        return {"raw": self.tars}

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each tar, in the order given."""
        for number, tar in enumerate(self._listed()):
            size: list[Plain] = [*size_or_tag(tar.path)]
            raw = str(tar.path.absolute())
            input: dict[str, Plain] = {"raw": raw, "name": tar.name, "size": size}
            yield Unit(name=f"{number:06d}", input=input)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Yield the work on one tar."""
        yield self._index

    def units_name_content(self) -> bool:
        """Say that units do: they hold the tag of a remote tar, and receipts what they read."""
        return True

    def checksum_read(self, unit: Unit) -> str:
        """Return the checksum of what is read of a local tar: its headers, and no more."""
        (url,) = unit.places
        if is_remote(url):
            return ""
        arrays, state = self._walked(url).arrays, xxhash.xxh3_64()
        for name in sorted(arrays.arrays):
            state.update(np.ascontiguousarray(arrays[name]).view(np.uint8).data)
        return state.hexdigest()

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of each tar, size and tag of a remote one."""
        return fingerprint(tar.path.absolute() for tar in self._listed())

    def _listed(self) -> Iterator[Listed]:
        given = [place.removeprefix("file://") for place in self.tars]
        found = list(list_files(given, tar_stem, self.allow))
        if not found:
            raise ConfigError(f"{', '.join(self.tars)} holds no .tar files")
        yield from found

    def _index(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        walked = self._walked(*unit.places)
        tally.num_kept += walked.num_rows
        _count(walked.grouped, tally)
        for reason, count in walked.unknown.items():
            tally.count(f"unknown size|{reason}", count)
        with draft.file(unit.name, "idx").open("wb") as file:
            write_arrays(file, walked.arrays.format, walked.arrays.arrays, walked.arrays.meta)
        draft.finish(unit.name, num_samples=walked.num_rows)

    def _walked(self, url: str) -> Walked:
        return walk(url, *stamp(as_path(url)), self.interleaved, self.media_sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Walked:
    """What the headers of a tar say: its samples, its index, and why media have no sizes."""

    grouped: Grouped
    num_rows: int
    arrays: Arrays
    unknown: Counter[str]


# The last one is kept: who asks for its checksum works on it next.
@lru_cache(maxsize=1)
def walk(
    url: str, _size: int | str, _time: int | str, interleaved: bool, media_sizes: bool
) -> Walked:
    """Walk a tar."""
    with closing(open_blob(url)) as blob:
        found = walk_tar(blob)
        grouped = group_members(found, interleaved=interleaved)
        rows = IndexRows.of(grouped)
        unknown = _read_sizes(blob, rows) if media_sizes else Counter[str]()
        arrays = rows.arrays(as_path(url), end=found.end, num_bytes=blob.num_bytes)
        return Walked(grouped, len(rows), arrays, unknown)


def _count(grouped: Grouped, tally: Tally) -> None:
    tally.num_in += grouped.num_samples
    for key, problem in grouped.bad:
        tally.skip(key, problem)
    for kind, count in grouped.passed.items():
        tally.count(f"{PASSED_OVER}|{kind}", count)


def _read_sizes(blob: Blob, rows: IndexRows) -> Counter[str]:
    """Put the sizes of media into the rows; return how many have none, by reason."""
    unknown: Counter[str] = Counter()
    kinds = [media_kind(ext) for ext in rows.exts]
    # A mapped file is read only where a header is looked at.
    limit = blob.num_bytes if blob.mapped() is not None else REMOTE_HEAD_BYTES
    media = [number for number, ext in enumerate(rows.ext) if kinds[ext] is not None]
    ranges = [(rows.offset[number], min(rows.size[number], limit)) for number in media]
    for number, head in zip(media, blob.view_all(ranges)):
        try:
            rows.media[number] = probe(str(kinds[rows.ext[number]]), head).size
        except SampleError as problem:
            unknown[problem.reason] += 1
    return unknown
