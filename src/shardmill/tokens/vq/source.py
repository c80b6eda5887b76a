"""Code shards as a source of codes for tokenization: joined by key and medium, never re-encoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shardmill.errors import ConfigError, SampleError
from shardmill.io.codefile import ROLE, CodeShard, open_codes
from shardmill.io.receipts import open_manifest
from shardmill.model.codec import digest
from shardmill.model.sample import Sample
from shardmill.tokens.codes import CodeReader, Codes, with_pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCodes:
    """A finished folder of code shards; `identity` says which one, so that it cannot change."""

    folder: Path
    identity: str = ""

    def __post_init__(self) -> None:
        if not self.identity:
            object.__setattr__(self, "identity", identity_of(self.folder))

    @contextmanager
    def open(self) -> Iterator[CodeReader]:
        """Yield the reader over all shards of the folder."""
        if identity_of(self.folder) != self.identity:
            raise ConfigError(f"{self.folder} has other codes than when this run was planned")
        manifest = open_manifest(self.folder)
        yield ShardReader([self.folder / shard.files[ROLE].path for shard in manifest.shards])


@dataclass(slots=True)
class ShardReader:
    """Finds the codes of a sample; shards are opened when they are first looked at.

    Samples come in the order in which they were encoded, so the shard of the last one, or the one
    after it, nearly always has the next.
    """

    paths: list[Path]
    _shards: dict[int, CodeShard] = field(default_factory=dict)
    _last: int = 0

    def complete(self, sample: Sample) -> Sample:
        """Return the sample with the pictures in front of which only codes are left."""
        if sample.document.media("image"):
            return sample
        place = self._find(sample.key)
        names = [] if place is None else [p.medium for p in place[0].pictures(place[1])]
        return with_pictures(sample, names)

    def codes(self, sample: Sample, medium: str) -> Codes:
        """Return the codes of a medium of the sample."""
        place = self._find(sample.key)
        if place is None:
            raise SampleError("no image codes", f"{sample.key!r} is in no code shard")
        return _codes_of(*place, sample.key, medium)

    def _find(self, key: str) -> tuple[CodeShard, int] | None:
        for step in range(len(self.paths)):
            number = (self._last + step) % len(self.paths)
            shard = self._shard(number)
            row = shard.find(key)
            if row is not None:
                self._last = number
                return shard, row
        return None

    def _shard(self, number: int) -> CodeShard:
        if number not in self._shards:
            self._shards[number] = open_codes(self.paths[number])
        return self._shards[number]


def identity_of(folder: Path) -> str:
    """Return 32 hex digits that stand for the spec and the inputs of a finished folder of codes."""
    manifest = open_manifest(folder)
    if any(ROLE not in shard.files for shard in manifest.shards):
        raise ConfigError(f"{folder} holds no codes: make them with shardmill codes")
    return digest([manifest.stage_digest, manifest.units_digest])


def _codes_of(shard: CodeShard, row: int, key: str, medium: str) -> Codes:
    for picture in shard.pictures(row):
        if picture.medium == medium:
            height, width = picture.codes.shape
            return Codes(height, width, picture.codes.reshape(-1))
    raise SampleError("no image codes", f"{key!r} has none for {medium!r}")
