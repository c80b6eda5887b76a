"""Media inside of other files: members of a tar, values of an LMDB; the last few stay open."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardmill.errors import FormatError, SampleError, need
from shardmill.shards.tar.read import walk_tar
from shardmill.storage.blob import Blob, open_blob
from shardmill.storage.url import is_remote

MAX_OPEN = 8


@dataclass(frozen=True, slots=True)
class _OpenTar:
    blob: Blob
    members: dict[str, tuple[int, int]]
    links: dict[str, str]


@dataclass(slots=True)
class TarMembers:
    """Reads members by name; a tar's headers are walked once while it stays open.

    A tar that cannot be walked is remembered too, so that each of its rows is rejected at once.
    """

    tars: OrderedDict[str, _OpenTar | SampleError] = field(default_factory=OrderedDict)

    def read(self, url: str, member: str, max_bytes: int) -> bytes:
        """Return the content of a member."""
        tar = self._tar(url)
        if member not in tar.members:
            raise SampleError("missing file", f"{url} has no member {member!r:.200}")
        if member in tar.links:
            raise SampleError("link", f"{url}: {tar.links[member]}")
        offset, size = tar.members[member]
        if size > max_bytes:
            detail = f"{url}::{member}: {size} bytes, the limit is {max_bytes}"
            raise SampleError("too large", detail)
        return tar.blob.read(offset, size)

    def close(self) -> None:
        """Close all tars."""
        while self.tars:
            self._drop_oldest()

    def _tar(self, url: str) -> _OpenTar:
        if url not in self.tars:
            if len(self.tars) >= MAX_OPEN:
                self._drop_oldest()
            self.tars[url] = _open_tar(url)
        self.tars.move_to_end(url)
        tar = self.tars[url]
        if isinstance(tar, SampleError):
            raise SampleError(tar.reason, tar.detail)
        return tar

    def _drop_oldest(self) -> None:
        _, tar = self.tars.popitem(last=False)
        if isinstance(tar, _OpenTar):
            tar.blob.close()


@dataclass(slots=True)
class LmdbValues:
    """Reads values by key from databases that are opened read-only and without a lock."""

    databases: OrderedDict[str, Any] = field(default_factory=OrderedDict)

    def read(self, path: str, key: str) -> bytes:
        """Return the value of a key."""
        lmdb = need("lmdb", extra="lmdb")
        if path not in self.databases:
            self._open(lmdb, path)
        self.databases.move_to_end(path)
        try:
            with self.databases[path].begin() as transaction:
                value = transaction.get(key.encode("utf-8", "surrogatepass"))
        except lmdb.Error as error:
            raise SampleError("unreadable database", f"{path}: {error}") from error
        if value is None:
            raise SampleError("missing file", f"{path} has no key {key!r:.200}")
        return bytes(value)

    def close(self) -> None:
        """Close all databases."""
        while self.databases:
            self.databases.popitem()[1].close()

    def _open(self, lmdb: Any, path: str) -> None:
        if len(self.databases) >= MAX_OPEN:
            self.databases.popitem(last=False)[1].close()
        if not os.path.lexists(path):
            raise SampleError("missing file", path)
        try:
            self.databases[path] = lmdb.open(
                path, readonly=True, lock=False, readahead=False, subdir=Path(path).is_dir()
            )
        except lmdb.Error as error:
            raise SampleError("unreadable database", f"{path}: {error}") from error


def _open_tar(url: str) -> _OpenTar | SampleError:
    if not is_remote(url) and not os.path.lexists(url):
        return SampleError("missing file", url)
    try:
        blob = open_blob(url)
        walk = walk_tar(blob)
    except FormatError as error:
        return SampleError("unreadable tar", str(error))
    places = zip(walk.offsets, walk.sizes)
    # The last member of a name counts, be it a link or not.
    last = {name: number for number, name in enumerate(walk.names)} if walk.links else {}
    links = {walk.names[n]: text for n, text in walk.links.items() if last[walk.names[n]] == n}
    return _OpenTar(blob, dict(zip(walk.names, places)), links)
