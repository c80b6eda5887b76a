"""Reads the folders of shardmill itself: tokens and packs, samples, codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash

from shardmill.errors import ConfigError, SampleError
from shardmill.formats.reader import Aspect, FolderReader, Reader, Record, with_codes
from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import Sample
from shardmill.model.space import TokenSpace
from shardmill.shards.codes import ROLE, CodeJoin, join_codes, open_codes
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import open_entry
from shardmill.shards.tokens.shard import ROLES, TokenShard, open_token_shard, open_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensReader(FolderReader):
    """A folder of token or pack shards; a pack is a record, or each row is one."""

    def holds(self) -> frozenset[Aspect]:
        """Return all aspects of tokens; codes if the space has some."""
        space = self.token_space()
        has_codes = space is not None and space.num_codes > 0
        known: set[Aspect] = {"keys", "tokens", "words", "documents", "loss", "modality"}
        return frozenset(known | ({"codes"} if has_codes else set()))

    def token_space(self) -> TokenSpace | None:
        """Return the space of the first shard."""
        return open_tokens(Path(self.dir)).space

    def count(self, shard: ShardEntry) -> int:
        """Return how many packs or rows a shard has."""
        opened = self._open(shard)
        return len(opened.documents) - 1 if opened.holds_packs else len(opened)

    def records(self, shard: ShardEntry) -> Iterator[Record]:
        """Yield the rows or packs of a shard."""
        opened = self._open(shard)
        bounds = opened.documents if opened.holds_packs else np.arange(len(opened) + 1)
        for first, last in pairwise(bounds.tolist()):
            rows = tuple(opened[row] for row in range(first, last))
            record = Record(key=rows[0].key if rows else "", rows=rows)
            yield with_codes(record, opened.space) if opened.space.num_codes else record

    def _open(self, shard: ShardEntry) -> TokenShard:
        return open_token_shard({role: Path(self.dir) / shard.files[role].path for role in ROLES})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesReader(FolderReader):
    """A folder of samples; `codes_dir` holds the codes of their images."""

    codes_dir: str | None = None

    def holds(self) -> frozenset[Aspect]:
        """Return keys, text and media; codes if their folder is given."""
        known: set[Aspect] = {"keys", "text", "media"}
        return frozenset(known | ({"codes"} if self.codes_dir else set()))

    def records(self, shard: ShardEntry) -> Iterator[Record]:
        """Yield the samples of a shard."""
        codes = None if self.codes_dir is None else join_codes(Path(self.codes_dir))
        with open_entry(Path(self.dir), shard) as samples:
            for sample in samples:
                yield _sample_record(sample, codes, shard.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesReader(FolderReader):
    """A folder of codes."""

    def holds(self) -> frozenset[Aspect]:
        """Return keys and codes."""
        return frozenset({"keys", "codes"})

    def records(self, shard: ShardEntry) -> Iterator[Record]:
        """Yield the samples of a shard."""
        opened = open_codes(Path(self.dir) / shard.files[ROLE].path)
        for number, key in enumerate(opened.keys):
            images = opened.images(number)
            yield Record(key=key, codes=tuple(image.codes.reshape(-1) for image in images))


def open_folder(folder: Path, codes_dir: str | None = None) -> Reader:
    """Return the reader of a finished folder, by what its manifest says that it holds."""
    content = open_manifest(folder).content
    if content in ("tokens", "packs"):
        return TokensReader(dir=str(folder))
    if content == "codes":
        return CodesReader(dir=str(folder))
    if content == "samples":
        return SamplesReader(dir=str(folder), codes_dir=codes_dir)
    raise ConfigError(f"{folder} holds {content}, not samples, codes or tokens")


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
