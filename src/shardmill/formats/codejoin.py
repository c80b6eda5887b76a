"""The codes of samples, found by key: the next of the shard of the same name, or any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.io.codefile import ROLE, CodeShard, open_codes
from shardmill.io.receipts import open_manifest
from shardmill.model.codec import digest
from shardmill.model.manifest import Manifest

# Shards are mapped, so an open one takes little; keys are looked for in all of them.
MAX_OPEN = 256


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """The codes of one picture, row by row, and its size in pixels."""

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
    _open: dict[str, CodeCursor] = field(default_factory=dict)

    def pictures(self, key: str, shard_name: str) -> list[Picture]:
        """Return the pictures of a sample in the order of its document."""
        for cursor in self._candidates(shard_name):
            row = cursor.find(key)
            if row is not None:
                return cursor.pictures(row)
        raise SampleError("no image codes", f"{key!r} is in no code shard of {self.folder}")

    def shard(self, name: str) -> CodeShard | None:
        """Return the shard of this name, if there is one."""
        return self._cursor(name).shard if name in self.paths else None

    def _candidates(self, shard_name: str) -> Iterator[CodeCursor]:
        # `codes` names its shards like those of the samples, so the first one nearly always has it.
        if shard_name in self.paths:
            yield self._cursor(shard_name)
        yield from (self._cursor(name) for name in self.paths if name != shard_name)

    def _cursor(self, name: str) -> CodeCursor:
        if name not in self._open:
            while len(self._open) >= MAX_OPEN:
                del self._open[next(iter(self._open))]
            self._open[name] = CodeCursor(open_codes(self.paths[name]))
        return self._open[name]


class CodeCursor:
    """Reads a code shard in order; any other order works too, but is slower."""

    def __init__(self, shard: CodeShard) -> None:
        self.shard, self._next = shard, 0

    def find(self, key: str) -> int | None:
        """Return the number of the sample with this key, or None."""
        row: int | None = self._next
        if self._next >= len(self.shard) or self.shard.keys[self._next] != key:
            row = self.shard.find(key)
        if row is not None:
            self._next = row + 1
        return row

    def pictures(self, row: int) -> list[Picture]:
        """Return the pictures of a sample."""
        factor, found = self.shard.factor, self.shard.pictures(row)
        sizes = [(p.codes.shape[1] * factor, p.codes.shape[0] * factor) for p in found]
        return [Picture(p.medium, p.codes.reshape(-1), *size) for p, size in zip(found, sizes)]


def join_codes(folder: Path) -> CodeJoin:
    """Open a finished folder of codes."""
    manifest = open_manifest(folder)
    if any(ROLE not in shard.files for shard in manifest.shards):
        raise ConfigError(f"{folder} holds no codes: make them with shardmill codes")
    paths = {shard.name: folder / shard.files[ROLE].path for shard in manifest.shards}
    return CodeJoin(folder, _identity(manifest), paths)


def _identity(manifest: Manifest) -> str:
    return digest([manifest.stage_digest, manifest.units_digest])
