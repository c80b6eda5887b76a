"""Indexes foreign tars where they lie: one unit and one `.idx` for each tar, nothing is copied.

Only headers are read, by range requests where a tar is remote; with `media_sizes` also the first
bytes of images, videos and audio. A medium whose header cannot be read has size 0 in the index
and is counted; a sample that cannot be addressed is a reject.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shardmill.errors import ConfigError, SampleError
from shardmill.media.header import probe
from shardmill.model.codec import Plain
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.shards.tar.index import IndexRows
from shardmill.shards.tar.read import Grouped, group_members, walk_tar
from shardmill.sources.source import media_kind
from shardmill.storage.blob import Blob, open_blob
from shardmill.storage.path import expand, is_remote

REMOTE_HEAD_BYTES = 256 << 10  # holds the headers of all but odd files, for one request each


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTars:
    """The spec: tars by path, folder, glob, braces or url.

    `interleaved` groups `K.json` with `K-0.jpg`, `K-1.jpg`, ... (see `shards.tar.grouping`).
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "samples"

    tars: tuple[str, ...]
    interleaved: bool = True
    media_sizes: bool = False

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return the tars."""
        return {"raw": self.tars}

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each tar, in the order given."""
        for number, (url, stamp) in enumerate(self.inputs().items()):
            yield Unit(name=f"{number:06d}", input={"url": url, "stamp": stamp})

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Yield the work on one tar."""
        yield self._index

    def units_name_content(self) -> bool:
        """Say that units do: they hold size and time of a tar, of a remote one the size alone."""
        return not any(map(is_remote, self._urls()))

    def inputs(self) -> Mapping[str, Any]:
        """Return [size, mtime_ns] of each tar, [size] of a remote one."""
        return {url: _stamp(url) for url in dict.fromkeys(self._urls())}

    def _urls(self) -> Iterator[str]:
        for pattern in self.tars:
            for url in expand(pattern):
                if is_remote(url):
                    yield url
                else:
                    yield from _local_tars(Path(url.removeprefix("file://")).absolute())

    def _index(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        url = str(unit.input["url"])
        blob = open_blob(url)
        try:
            walk = walk_tar(blob)
            grouped = group_members(walk, interleaved=self.interleaved)
            rows = IndexRows.of(grouped)
            tally.num_kept += len(rows)
            _count(grouped, tally)
            if self.media_sizes:
                _read_sizes(blob, rows, tally)
            path = draft.file(unit.name, "idx")
            rows.write(path, end=walk.end, num_bytes=blob.num_bytes, url=url)
            draft.finish(unit.name, num_samples=len(rows))
        finally:
            blob.close()


def _local_tars(path: Path) -> list[str]:
    if not path.is_dir():
        return [str(path)]
    found = sorted(str(tar) for tar in path.glob("*.tar"))
    if not found:
        raise ConfigError(f"{path} holds no .tar files")
    return found


def _stamp(url: str) -> list[Plain]:
    # A web server need not tell a time, and stores tell that of the upload: there the size decides.
    blob = open_blob(url)
    blob.close()
    return [blob.num_bytes] if is_remote(url) else [blob.num_bytes, Path(url).stat().st_mtime_ns]


def _count(grouped: Grouped, tally: Tally) -> None:
    tally.num_in += grouped.num_samples
    for key, problem in grouped.bad:
        tally.skip(key, problem)
    for kind, count in grouped.passed.items():
        tally.count(f"passed over|{kind}", count)


def _read_sizes(blob: Blob, rows: IndexRows, tally: Tally) -> None:
    kinds = [media_kind(ext) for ext in rows.exts]
    # A mapped file is read only where a header is looked at.
    limit = blob.num_bytes if blob.mapped() is not None else REMOTE_HEAD_BYTES
    media = [number for number, ext in enumerate(rows.ext) if kinds[ext] is not None]
    ranges = [(rows.offset[number], min(rows.size[number], limit)) for number in media]
    for number, head in zip(media, blob.view_all(ranges)):
        try:
            rows.media[number] = probe(str(kinds[rows.ext[number]]), head).size
        except SampleError as problem:
            tally.count(f"unknown size|{problem.reason}")
