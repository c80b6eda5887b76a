"""Rows or packs of token shards as packed samples, many at a time: what tars and MDS shards hold.

Of token shards each row is a sample, of pack shards each pack; `packed` states the fields.

The fields of packed samples as JSON text, for whole batches; `packed` states them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.formats.format import ExportInput, Piece
from shardmill.formats.rows import TokenRows, token_rows
from shardmill.model.codec import digest
from shardmill.model.sample import SEGMENT_KINDS
from shardmill.shards.columns import bounds_between
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleDataset, open_samples
from shardmill.shards.weave import (
    Column,
    chosen,
    json_list,
    json_object,
    number_lists,
    numbers,
    quoted_texts,
    texts,
)
from shardmill.storage.background import Room

# So many that what a batch costs by itself does not count, and two of them take little memory.
BATCH_TOKENS = 1 << 21
BATCH_TOKENS_WITH_IMAGES = 1 << 17  # where the images of a batch are in memory as well


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """Packed samples in order: sample i has the documents documents[i] to documents[i + 1].

    Media of document d are media_bounds[d] to media_bounds[d + 1], with the columns of the shard;
    `media_starts` are their first tokens among those of the batch. Names are keys in UTF-8.
    """

    rows: TokenRows
    names: Column
    document_names: Column
    documents: NDArray[np.int64]
    media_bounds: NDArray[np.int64]
    media_starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def keys(self) -> list[str]:
        """The key of each sample."""
        return [name.decode() for name in self.names.contents()]

    @property
    def media_names(self) -> list[str]:
        """The names that media have in their samples, which `media("name")` counts in."""
        names: list[str] = self.rows.part.shard.spans.meta["media_names"]
        return names

    @property
    def media_documents(self) -> NDArray[np.int64]:
        """The document of each medium."""
        return np.repeat(np.arange(len(self.document_names)), np.diff(self.media_bounds))

    @property
    def sample_media(self) -> NDArray[np.int64]:
        """The first medium of each sample, and the end."""
        return self.media_bounds[self.documents]

    def media(self, name: str) -> NDArray[Any]:
        """Return a column of the media, such as "grid"."""
        part = self.rows.part
        first = _media_bounds(self.rows)[0]
        values: NDArray[Any] = part.shard.columns[f"media_{name}"]
        return values[first : first + len(self.media_starts)]


def packed_batches(
    source: ExportInput, piece: Piece, max_tokens: int = BATCH_TOKENS
) -> Iterator[PackedBatch]:
    """Yield the rows or packs of a unit in order."""
    number = 0
    for rows in token_rows(source, piece.slices, max_tokens):
        part = rows.part
        names = document_names = part.key_texts()
        if rows.members is not None:
            numbers = range(number, number + len(rows))
            names = texts([f"{piece.name}-{pack:06d}".encode() for pack in numbers])
        bounds = _media_bounds(rows)
        yield PackedBatch(
            rows=rows,
            names=names,
            document_names=document_names,
            documents=np.arange(len(names) + 1) if rows.members is None else rows.members,
            media_bounds=bounds - bounds[0],
            media_starts=part.media()[0],
        )
        number += len(rows)


def read_images(
    batch: PackedBatch, sample: int, samples: SampleDataset
) -> list[tuple[str, memoryview]]:
    """Return (extension, bytes) of each medium of a packed sample, from the samples' folder."""
    first, last = batch.sample_media[sample : sample + 2].tolist()
    owners = [
        bytes(batch.document_names[d]).decode() for d in batch.media_documents[first:last].tolist()
    ]
    names = [batch.media_names[name] for name in batch.media("name")[first:last].tolist()]
    # A row that was split off a longer one has its key with ~1, ~2 added.
    numbers = samples.find_all([key.partition("~")[0] for key in owners]).tolist()
    found = []
    for key, number, name in zip(owners, numbers, names):
        raw = {} if number < 0 else samples.raw(number)
        if name not in raw:
            raise ConfigError(f"{samples.folder} has no medium {name!r} of sample {key!r}")
        found.append((name.rpartition(".")[2], raw[name]))
    return found


@lru_cache(maxsize=1)
def open_images(folder: Path) -> SampleDataset:
    """Return the folder of samples whose media are copied, opened once a process."""
    return open_samples(folder)


def identity_of(folder: Path | None) -> str:
    """Return what stands for the content of a finished folder, in the digest of units."""
    if folder is None:
        return ""
    manifest = open_manifest(folder)
    return digest([manifest.stage_digest, manifest.units_digest])


def _media_bounds(rows: TokenRows) -> NDArray[np.int64]:
    part = rows.part
    shard, span = part.shard, range(part.start, part.stop)
    total = len(shard.columns["media_length"])
    return bounds_between(shard.spans, "media_bounds", span, len(shard), total)


GRID_AXES = 3


def lengths_json(batch: PackedBatch) -> list[Column]:
    """Return the lengths of the documents."""
    return [number_lists(batch.rows.part.lengths, batch.documents, around=b"[]")]


def keys_json(batch: PackedBatch) -> list[Column]:
    """Return the keys of the documents."""
    return json_list(quoted_texts(batch.document_names), batch.documents)


def ids_json(batch: PackedBatch, room: Room) -> list[Column]:
    """Return the ids of all tokens, in `room`."""
    return [number_lists(batch.rows.ids, batch.rows.bounds, around=b"[]", room=room)]


def mask_json(batch: PackedBatch, room: Room) -> list[Column]:
    """Return 1 for each token that is learned, 0 for the others, in `room`."""
    mask = batch.rows.part.loss_mask()
    return [number_lists(mask, batch.rows.bounds, around=b"[]", room=room)]


def media_json(batch: PackedBatch) -> list[Column]:
    """Return an object for each medium; `document` and `position` count inside of the sample."""
    counts = np.diff(batch.sample_media)
    first_token = np.repeat(batch.rows.bounds[:-1], counts)
    first_document = np.repeat(batch.documents[:-1], counts)
    fields: dict[str, list[Column]] = {
        "after": [numbers(batch.media("after"))],
        "before": [numbers(batch.media("before"))],
        "document": [numbers(batch.media_documents - first_document)],
        "grid": [_grids(batch.media("grid"))],
        "kind": [chosen(SEGMENT_KINDS, batch.media("kind"))],
        "name": [chosen(batch.media_names, batch.media("name"))],
        "num_tokens": [numbers(batch.media("length"))],
        "position": [numbers(batch.media_starts - first_token)],
    }
    return json_list(json_object(fields, len(batch.media_starts)), batch.sample_media)


def _grids(grids: NDArray[Any]) -> Column:
    return number_lists(grids.reshape(-1), GRID_AXES * np.arange(len(grids) + 1), around=b"[]")
