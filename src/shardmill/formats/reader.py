"""The contract of a reader: data of any format as records in order, to be adopted or compared.

A record is one item as its format stores it: a row, a pack, a sample. A reader is a frozen
dataclass; `holds()` names the aspects that its records have, because a format that has no place for
something (Megatron has none for loss) must not be compared in it, nor trusted with it.

    keys         the record's key, and those of its documents
    tokens       ids in the model's token space, as `rows`
    documents    where a document of a pack ends: `rows` has one for each, otherwise a single one
    words        the ids outside of media and their delimiters
    loss         which tokens are learned
    modality     which tokens belong to media
    codes        the local codes of each image
    text         all text of the sample
    media        checksums of the bytes of its media
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError, SampleError
from shardmill.model.codec import Plain
from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import SEGMENT_KINDS, Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import (
    MEDIA_COLUMNS,
    MediaColumns,
    MediaSpan,
    TokenRow,
    mask_of,
    modality_of,
)
from shardmill.shards.arrays import NumberedKeys
from shardmill.shards.ledger import open_manifest

Aspect: TypeAlias = Literal[
    "keys", "text", "tokens", "words", "documents", "loss", "modality", "codes", "media"
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Record:
    """One item; one that cannot be read carries its `problem` instead."""

    key: str = ""
    rows: tuple[TokenRow, ...] = ()
    codes: tuple[NDArray[Any], ...] = ()
    text: str = ""
    media: tuple[str, ...] = ()
    problem: SampleError | None = None

    @property
    def num_tokens(self) -> int:
        """The tokens of all its documents."""
        return sum(len(row.ids) for row in self.rows)

    def ids(self) -> NDArray[Any]:
        """Return the ids of all its documents."""
        return _joined([row.ids for row in self.rows], np.int64)

    def words(self) -> NDArray[Any]:
        """Return the ids outside of media and their delimiters."""
        return _joined([_words_of(row) for row in self.rows], np.int64)

    def loss_mask(self) -> NDArray[np.bool_]:
        """Return which tokens are learned."""
        return _joined([mask_of(row.loss, len(row.ids)) for row in self.rows], np.bool_)

    def modality(self) -> NDArray[np.uint8]:
        """Return the modality of each token."""
        return _joined([modality_of(row.media, len(row.ids)) for row in self.rows], np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Many records as flat arrays, all of whose tokens are learned, from one file of origin.

    `lengths` are those of the documents, `per_record` how many of them each record has, `rows` the
    numbers of the records in their file.
    """

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    per_record: NDArray[np.int64]
    media: MediaColumns
    keys: Sequence[str] | NumberedKeys
    origin: Origin
    rows: NDArray[np.int64]

    def records(self) -> Iterator[Record]:
        """Yield the records one by one."""
        documents = self._documents()
        for key, number, count in zip(self.keys, self.rows.tolist(), self.per_record.tolist()):
            origin = replace(self.origin, row=number)
            rows = tuple(
                TokenRow(
                    key=f"{key}~{at}" if at else key,
                    ids=ids,
                    loss=np.array([[0, len(ids)]], np.int64)[: len(ids)],
                    media=media,
                    origin=origin,
                    continues=at > 0,
                )
                for at, (ids, media) in enumerate(islice(documents, count))
            )
            yield Record(key=key, rows=rows)

    def _documents(self) -> Iterator[tuple[NDArray[Any], tuple[MediaSpan, ...]]]:
        ends, spans = np.cumsum(self.lengths).tolist(), iter(self._spans())
        counts = self.media.counts.tolist()
        for length, end, count in zip(self.lengths.tolist(), ends, counts):
            yield self.ids[end - length : end], tuple(islice(spans, count))

    def _spans(self) -> list[MediaSpan]:
        media = self.media
        columns = [media.columns[name].tolist() for name in MEDIA_COLUMNS]
        return [
            MediaSpan(
                name=media.names[name],
                kind=SEGMENT_KINDS[kind],
                position=position,
                num_tokens=length,
                grid=(t, h, w),
                before=before,
                after=after,
            )
            for position, length, before, after, kind, name, (t, h, w) in zip(
                *columns, media.grid.tolist()
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the data that is read by itself; `input` identifies it as plain JSON.

    `passed` counts what the format holds there besides records, by its kind.
    """

    input: Mapping[str, Plain]
    num_records: int
    passed: Mapping[str, int]


@runtime_checkable
class Reader(Protocol):
    """A frozen dataclass that lists parts in an order that no file system decides."""

    def holds(self) -> frozenset[Aspect]:
        """Return the aspects that all its records have."""

    def token_space(self) -> TokenSpace | None:
        """Return the token space of its ids; None if it has none or does not say."""

    def parts(self) -> Iterator[Part]:
        """Yield the parts; looks at sizes and indexes, not at the data."""

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the records of a part."""

    def inputs(self) -> Mapping[str, Any]:
        """Return a cheap fingerprint of the files: path -> [size, mtime_ns]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderReader(ABC):
    """A reader of a finished folder, whose parts are the shards of its manifest."""

    dir: str
    space: TokenSpace | None = None

    @abstractmethod
    def holds(self) -> frozenset[Aspect]:
        """Return the aspects that all its records have."""

    @abstractmethod
    def records(self, shard: ShardEntry) -> Iterator[Record]:
        """Yield the records of a shard."""

    def count(self, shard: ShardEntry) -> int:
        """Return how many records a shard has."""
        return shard.num_samples

    def token_space(self) -> TokenSpace | None:
        """Return the space that was given."""
        return self.space

    def parts(self) -> Iterator[Part]:
        """Yield a part for each shard."""
        for number, shard in enumerate(open_manifest(Path(self.dir)).shards):
            yield Part(input={"shard": number}, num_records=self.count(shard), passed={})

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the records of a part."""
        return self.records(open_manifest(Path(self.dir)).shards[input["shard"]])

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the manifest."""
        path = Path(self.dir) / "manifest.json"
        return {str(path): stamp(path)}


@runtime_checkable
class BlockReader(Protocol):
    """A reader that has many records at a time, for who takes them all."""

    def read_blocks(self, input: Mapping[str, Any]) -> Iterator[Block]:
        """Yield the records of a part, many at a time; the next block may use the same memory."""


@runtime_checkable
class FileReader(Protocol):
    """A reader whose parts may lie in files just as a token shard stores them."""

    def ids_file(self, input: Mapping[str, Any]) -> Path | None:
        """Return a file that is the ids of all records of a part in order, and nothing else."""


def with_codes(record: Record, space: TokenSpace) -> Record:
    """Return a record of tokens with the local codes of its images."""
    codes = tuple(
        space.local_codes(row.ids[span.position : span.position + span.num_tokens])
        for row in record.rows
        for span in row.media
        if span.kind == "image"
    )
    return replace(record, codes=codes)


def is_code(ids: NDArray[Any], space: TokenSpace) -> NDArray[np.bool_]:
    """Return which ids are image codes."""
    is_inside: NDArray[np.bool_] = ids >= space.code_offset
    is_inside &= ids < space.code_offset + space.num_codes
    return is_inside


def stamp(path: Path) -> list[int]:
    """Return [size, mtime_ns] of a file."""
    try:
        info = path.stat()
    except OSError as error:
        raise FormatError(f"cannot be looked at: {error.strerror}", path=path) from error
    return [info.st_size, info.st_mtime_ns]


def _words_of(row: TokenRow) -> NDArray[Any]:
    if not row.media:
        return row.ids
    is_word = np.ones(len(row.ids), np.bool_)
    for span in row.media:
        is_word[span.start : span.end] = False
    return row.ids[is_word]


def _joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    if len(parts) == 1:
        return parts[0]
    joined: NDArray[Any] = np.concatenate([*parts, np.empty(0, dtype)])
    return joined.astype(dtype, copy=False)
