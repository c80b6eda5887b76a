"""Code shards as a source of codes for tokenization: joined by key and medium, never re-encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shardmill.errors import ConfigError, SampleError
from shardmill.io.codefile import ROLE, CodeShard, open_codes
from shardmill.io.receipts import open_manifest
from shardmill.io.rejects import read_rejects, reject_lists, without_codes
from shardmill.model.codec import digest
from shardmill.model.sample import Sample
from shardmill.model.stage import Reject
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
        shards = open_manifest(self.folder).shards
        codes = {shard.name: self.folder / shard.files[ROLE].path for shard in shards}
        rejects = reject_lists(self.folder)
        names = sorted({*codes, *rejects})
        yield ShardReader([(codes.get(name), rejects.get(name)) for name in names])


@dataclass(slots=True)
class ShardReader:
    """Finds the codes of a sample; files are opened when they are first looked at.

    `units` has the code shard and the list of rejects of each unit, as far as there are any.
    Samples come in the order in which they were encoded, so the unit of the last one, or the one
    after it, nearly always has the next; also one that was left out when codes were made.
    """

    units: list[tuple[Path | None, Path | None]]
    _open: dict[int, _Unit] = field(default_factory=dict)
    _last: int = 0

    def complete(self, sample: Sample) -> Sample:
        """Return the sample with the pictures in front of which only codes are left."""
        if sample.document.media("image"):
            return sample
        found = self._find(sample.key)
        names = [p.medium for p in found[0].pictures(found[1])] if isinstance(found, tuple) else []
        return with_pictures(sample, names)

    def codes(self, sample: Sample, medium: str) -> Codes:
        """Return the codes of a medium of the sample.

        One that was filtered when codes were made is filtered here, and costs no budget either.
        """
        found = self._find(sample.key)
        if isinstance(found, tuple):
            return _codes_of(*found, sample.key, medium)
        if found is None:
            raise SampleError("no image codes", f"{sample.key!r} is in no code shard")
        raise without_codes(found)

    def _find(self, key: str) -> tuple[CodeShard, int] | Reject | None:
        for step in range(len(self.units)):
            number = (self._last + step) % len(self.units)
            if number not in self._open:
                self._open[number] = _Unit.opened(*self.units[number])
            found = self._open[number].find(key)
            if found is not None:
                self._last = number
                return found
        return None


@dataclass(frozen=True, slots=True)
class _Unit:
    shard: CodeShard | None
    rejects: Mapping[str, Reject]

    @classmethod
    def opened(cls, codes_path: Path | None, rejects_path: Path | None) -> _Unit:
        rejects = () if rejects_path is None else read_rejects(rejects_path)
        shard = None if codes_path is None else open_codes(codes_path)
        return cls(shard, {reject.key: reject for reject in rejects})

    def find(self, key: str) -> tuple[CodeShard, int] | Reject | None:
        row = None if self.shard is None else self.shard.find(key)
        if self.shard is not None and row is not None:
            return self.shard, row
        return self.rejects.get(key)


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
