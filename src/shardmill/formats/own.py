"""Reads the folders of shardmill itself: tokens and packs, samples, codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardmill.errors import ConfigError, SampleError
from shardmill.formats.reader import Aspect, Part, Record, stamp, with_codes
from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import Sample
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.codes import ROLE, CodeJoin, join_codes, open_codes
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import open_entry
from shardmill.shards.tokens.shard import ROLES, TokenShard, open_token_shard, open_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensReader:
    """A folder of token or pack shards; a pack is a record, or each row is one."""

    dir: str

    def holds(self) -> frozenset[Aspect]:
        """Return all aspects of tokens; codes if the space has some."""
        space = self.token_space()
        has_codes = space is not None and space.num_codes > 0
        known: set[Aspect] = {"keys", "tokens", "words", "documents", "loss", "modality"}
        return frozenset(known | ({"codes"} if has_codes else set()))

    def token_space(self) -> TokenSpace | None:
        """Return the space of the first shard."""
        return open_tokens(Path(self.dir)).space

    def parts(self) -> Iterator[Part]:
        """Yield a part for each shard."""
        for number, entry in enumerate(open_manifest(Path(self.dir)).shards):
            shard = self._shard(entry)
            count = len(shard.documents) - 1 if shard.holds_packs else len(shard)
            yield Part(input={"shard": number}, num_records=count, passed={})

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the rows or packs of a shard."""
        shard = self._shard(open_manifest(Path(self.dir)).shards[input["shard"]])
        bounds = shard.documents if shard.holds_packs else np.arange(len(shard) + 1)
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
            rows = tuple(shard[row] for row in range(first, last))
            yield _token_record(rows, shard.space)

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the manifest."""
        return _manifest_stamp(self.dir)

    def _shard(self, entry: ShardEntry) -> TokenShard:
        return open_token_shard({role: Path(self.dir) / entry.files[role].path for role in ROLES})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesReader:
    """A folder of samples; `codes_dir` holds the codes of their images."""

    dir: str
    codes_dir: str | None = None

    def holds(self) -> frozenset[Aspect]:
        """Return keys, text and media; codes if their folder is given."""
        known: set[Aspect] = {"keys", "text", "media"}
        return frozenset(known | ({"codes"} if self.codes_dir else set()))

    def token_space(self) -> None:
        """Return None: samples have no tokens."""

    def parts(self) -> Iterator[Part]:
        """Yield a part for each shard."""
        for number, entry in enumerate(open_manifest(Path(self.dir)).shards):
            yield Part(input={"shard": number}, num_records=entry.num_samples, passed={})

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the samples of a shard."""
        folder = Path(self.dir)
        entry = open_manifest(folder).shards[input["shard"]]
        codes = None if self.codes_dir is None else join_codes(Path(self.codes_dir))
        with open_entry(folder, entry) as shard:
            for sample in shard:
                yield _sample_record(sample, codes, entry.name)

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the manifest."""
        return _manifest_stamp(self.dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesReader:
    """A folder of codes."""

    dir: str

    def holds(self) -> frozenset[Aspect]:
        """Return keys and codes."""
        return frozenset({"keys", "codes"})

    def token_space(self) -> None:
        """Return None: codes are local."""

    def parts(self) -> Iterator[Part]:
        """Yield a part for each shard."""
        for number, entry in enumerate(open_manifest(Path(self.dir)).shards):
            yield Part(input={"shard": number}, num_records=entry.num_samples, passed={})

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the samples of a shard."""
        entry = open_manifest(Path(self.dir)).shards[input["shard"]]
        shard = open_codes(Path(self.dir) / entry.files[ROLE].path)
        for number, key in enumerate(shard.keys):
            images = shard.images(number)
            yield Record(key=key, codes=tuple(image.codes.reshape(-1) for image in images))

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the manifest."""
        return _manifest_stamp(self.dir)


def open_folder(folder: Path, codes_dir: str | None = None) -> Any:
    """Return the reader of a finished folder of shards, by what its shards are made of."""
    roles = {role for shard in open_manifest(folder).shards for role in shard.files}
    if "spans" in roles:
        return TokensReader(dir=str(folder))
    if ROLE in roles:
        return CodesReader(dir=str(folder))
    if "idx" in roles:
        return SamplesReader(dir=str(folder), codes_dir=codes_dir)
    raise ConfigError(f"{folder} holds no samples, codes or tokens")


def _token_record(rows: tuple[TokenRow, ...], space: TokenSpace) -> Record:
    record = Record(key=rows[0].key if rows else "", rows=rows)
    return with_codes(record, space) if space.num_codes else record


def _sample_record(sample: Sample, codes: CodeJoin | None, shard_name: str) -> Record:
    names = [segment.media for segment in sample.document.media()]
    missing = [name for name in names if name not in sample.media]
    if missing:
        problem = SampleError("missing media", f"{sample.key!r} has no medium {missing[0]!r}")
        return Record(key=sample.key, problem=problem)
    record = Record(
        key=sample.key,
        text=sample.document.text,
        media=tuple(xxhash.xxh3_64_hexdigest(sample.media[name]) for name in names),
    )
    if codes is None:
        return record
    images = codes.images(sample.key, shard_name)
    return replace(record, codes=tuple(image.codes.reshape(-1) for image in images))


def _manifest_stamp(folder: str) -> dict[str, Any]:
    path = Path(folder) / "manifest.json"
    return {str(path): stamp(path)}
