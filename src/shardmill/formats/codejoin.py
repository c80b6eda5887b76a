"""The codes of samples, found by key: the shard of the same name first, then all others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shardmill.errors import ConfigError, SampleError
from shardmill.io.codefile import ROLE, CodeShard, PictureCodes, open_codes
from shardmill.io.receipts import open_manifest
from shardmill.model.codec import digest
from shardmill.model.manifest import Manifest


@dataclass(slots=True)
class CodeJoin:
    """A folder of codes; `identity` stands for the spec and the inputs that made it."""

    folder: Path
    identity: str
    paths: dict[str, Path]
    _open: dict[str, CodeShard] = field(default_factory=dict)

    def pictures(self, key: str, shard_name: str) -> list[PictureCodes]:
        """Return the pictures of a sample in the order of its document; [] if it has none."""
        for shard in self._candidates(shard_name):
            row = shard.find(key)
            if row is not None:
                return shard.pictures(row)
        raise SampleError("no image codes", f"{key!r} is in no code shard of {self.folder}")

    @property
    def num_codes(self) -> int:
        """The size of the codebook; 0 if nothing was encoded."""
        return max((self._shard(name).num_codes for name in list(self.paths)[:1]), default=0)

    def _candidates(self, shard_name: str) -> Iterator[CodeShard]:
        # `codes` names its shards like those of the samples, so the first one nearly always has it.
        if shard_name in self.paths:
            yield self._shard(shard_name)
        yield from (self._shard(name) for name in self.paths if name != shard_name)

    def _shard(self, name: str) -> CodeShard:
        if name not in self._open:
            self._open[name] = open_codes(self.paths[name])
        return self._open[name]


def join_codes(folder: Path) -> CodeJoin:
    """Open a finished folder of codes."""
    manifest = open_manifest(folder)
    if any(ROLE not in shard.files for shard in manifest.shards):
        raise ConfigError(f"{folder} holds no codes: make them with shardmill codes")
    paths = {shard.name: folder / shard.files[ROLE].path for shard in manifest.shards}
    return CodeJoin(folder, _identity(manifest), paths)


def _identity(manifest: Manifest) -> str:
    return digest([manifest.stage_digest, manifest.units_digest])
