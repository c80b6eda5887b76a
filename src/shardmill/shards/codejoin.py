"""The codes of samples, found by key: the next of the shard of the same name, or any other.

A sample that was skipped when codes were made is found in the list of rejects beside its shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.model.codec import digest
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Reject
from shardmill.shards.codes import ROLE, CodeShard, open_codes
from shardmill.shards.ledger.ledger import open_manifest
from shardmill.shards.ledger.rejects import read_rejects, reject_lists, without_codes

# Shards are mapped, so an open one takes little; keys are looked for in all of them.
MAX_OPEN = 256


@dataclass(frozen=True, slots=True, eq=False)
class CodedImage:
    """The codes of one image, row by row, and its size in pixels."""

    medium: str
    codes: NDArray[Any]
    width: int
    height: int


@dataclass(slots=True)
class CodeJoin:
    """A folder of codes; `identity` stands for the spec and the inputs that made it."""

    folder: Path
    identity: str
    paths: dict[str, Path]
    rejects: dict[str, Path]
    _open: dict[str, CodeCursor] = field(default_factory=dict)

    def images(self, key: str, shard_name: str) -> list[CodedImage]:
        """Return the images of a sample in the order of its document."""
        for cursor in self._candidates(shard_name):
            found = cursor.find(key)
            if isinstance(found, Reject):
                raise without_codes(found)
            if found is not None:
                return cursor.images(found)
        raise SampleError("no image codes", f"{key!r} is in no code shard of {self.folder}")

    def shard(self, name: str) -> CodeShard | None:
        """Return the shard of this name, if there is one."""
        return self._cursor(name).shard if name in self.paths else None

    def _candidates(self, shard_name: str) -> Iterator[CodeCursor]:
        # `codes` names its shards like those of the samples, so the first one nearly always has it.
        names = dict.fromkeys([*self.paths, *self.rejects])
        if shard_name in names:
            yield self._cursor(shard_name)
        yield from (self._cursor(name) for name in names if name != shard_name)

    def _cursor(self, name: str) -> CodeCursor:
        if name not in self._open:
            while len(self._open) >= MAX_OPEN:
                del self._open[next(iter(self._open))]
            path, rejects_path = self.paths.get(name), self.rejects.get(name)
            shard = None if path is None else open_codes(path)
            rejects = () if rejects_path is None else read_rejects(rejects_path)
            self._open[name] = CodeCursor(shard, {reject.key: reject for reject in rejects})
        return self._open[name]


class CodeCursor:
    """Reads the codes of a unit in order; any other order works too, but is slower."""

    def __init__(self, shard: CodeShard | None, rejects: Mapping[str, Reject]) -> None:
        self.shard, self.rejects, self._next = shard, rejects, 0

    def find(self, key: str) -> int | Reject | None:
        """Return the number of the sample with this key, why it has no codes, or None."""
        if self.shard is None:
            return self.rejects.get(key)
        row: int | None = self._next
        if self._next >= len(self.shard) or self.shard.keys[self._next] != key:
            row = self.shard.find(key)
        if row is None:
            return self.rejects.get(key)
        self._next = row + 1
        return row

    def images(self, row: int) -> list[CodedImage]:
        """Return the images of a sample that `find` found."""
        assert self.shard is not None
        factor, found = self.shard.factor, self.shard.images(row)
        sizes = [(p.codes.shape[1] * factor, p.codes.shape[0] * factor) for p in found]
        return [CodedImage(p.medium, p.codes.reshape(-1), *size) for p, size in zip(found, sizes)]


def join_codes(folder: Path) -> CodeJoin:
    """Open a finished folder of codes."""
    manifest = open_manifest(folder)
    if any(ROLE not in shard.files for shard in manifest.shards):
        raise ConfigError(f"{folder} holds no codes: make them with shardmill codes")
    paths = {shard.name: folder / shard.files[ROLE].path for shard in manifest.shards}
    return CodeJoin(folder, _identity(manifest), paths, reject_lists(folder))


def _identity(manifest: Manifest) -> str:
    return digest([manifest.stage_digest, manifest.units_digest])
