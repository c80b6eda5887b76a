"""Rows or packs of token shards as packed samples: what tars and MDS shards hold of each.

Of token shards each row is a sample, of pack shards each pack; `packed` states the fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.formats.contract import Piece
from shardmill.formats.inputs import ExportInput
from shardmill.formats.tokenrows import TokenRows, token_rows
from shardmill.io.columns import bounds_between
from shardmill.io.receipts import open_manifest
from shardmill.io.sampleset import SampleSet, open_samples
from shardmill.model.codec import digest
from shardmill.model.sample import SEGMENT_KINDS

COLUMNS = ("position", "length", "before", "after", "kind", "name")


@dataclass(frozen=True, slots=True, eq=False)
class PackedSample:
    """A packed sample: arrays are views, `owners` are the keys of the documents of the media."""

    key: str
    ids: NDArray[Any]
    loss_mask: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    keys: Sequence[str]
    media: list[dict[str, Any]]
    owners: list[str]


def packed_samples(source: ExportInput, piece: Piece) -> Iterator[PackedSample]:
    """Yield the rows or packs of a unit in order."""
    number = 0
    for rows in token_rows(source, piece.slices):
        part = rows.part
        loss, lengths, media = part.loss_mask(), part.lengths, _media_of(rows)
        members = np.arange(len(part) + 1) if rows.members is None else rows.members
        for at, (first, last) in enumerate(zip(members[:-1].tolist(), members[1:].tolist())):
            start, end = int(rows.bounds[at]), int(rows.bounds[at + 1])
            keys = [part.shard.keys[part.start + row] for row in range(first, last)]
            found = media.between(first, last, start) if media.num_media else []
            yield PackedSample(
                key=keys[0] if rows.members is None else f"{piece.name}-{number:06d}",
                ids=rows.ids[start:end],
                loss_mask=loss[start:end],
                lengths=lengths[first:last],
                keys=keys,
                media=[medium for _, medium in found],
                owners=[keys[row - first] for row, _ in found],
            )
            number += 1


def read_pictures(packed: PackedSample, samples: SampleSet | None) -> list[tuple[str, memoryview]]:
    """Return (extension, bytes) of each medium of a packed sample, from the samples' folder."""
    if samples is None or not packed.media:
        return []
    # A row that was split off a longer one has its key with ~1, ~2 added.
    numbers = samples.find_all([key.partition("~")[0] for key in packed.owners]).tolist()
    found = []
    for key, number, medium in zip(packed.owners, numbers, packed.media):
        name = medium["name"]
        raw = {} if number < 0 else samples.raw(number)
        if name not in raw:
            raise ConfigError(f"{samples.folder} has no medium {name!r} of sample {key!r}")
        found.append((name.rpartition(".")[2], raw[name]))
    return found


@lru_cache(maxsize=1)
def open_pictures(folder: Path) -> SampleSet:
    """Return the folder of samples whose media are copied, opened once a process."""
    return open_samples(folder)


def identity_of(folder: Path | None) -> str:
    """Return what stands for the content of a finished folder, in the digest of units."""
    if folder is None:
        return ""
    manifest = open_manifest(folder)
    return digest([manifest.stage_digest, manifest.units_digest])


@dataclass(frozen=True, slots=True, eq=False)
class _Media:
    """The media of neighbouring rows: those of row i lie at bounds[i] to bounds[i + 1]."""

    num_media: int
    bounds: NDArray[np.int64]
    starts: NDArray[np.int64]
    columns: dict[str, list[int]]
    grids: list[list[int]]
    names: list[str]

    def between(self, first: int, last: int, start: int) -> list[tuple[int, dict[str, Any]]]:
        """Return (row, fields) of the media of some rows; positions count from token `start`."""
        found = []
        for row in range(first, last):
            for at in range(int(self.bounds[row]), int(self.bounds[row + 1])):
                values = {name: self.columns[name][at] for name in COLUMNS}
                fields = {
                    "name": self.names[values["name"]],
                    "kind": SEGMENT_KINDS[values["kind"]],
                    "document": row - first,
                    "position": int(self.starts[at]) - start,
                    "num_tokens": values["length"],
                    "grid": self.grids[at],
                    "before": values["before"],
                    "after": values["after"],
                }
                found.append((row, fields))
        return found


def _media_of(rows: TokenRows) -> _Media:
    part = rows.part
    shard, span = part.shard, range(part.start, part.stop)
    total = len(shard.columns["media_length"])
    bounds = bounds_between(shard.spans, "media_bounds", span, len(shard), total)
    mine = slice(int(bounds[0]), int(bounds[-1]))
    starts, _, _ = part.media()
    return _Media(
        num_media=mine.stop - mine.start,
        bounds=bounds - bounds[0],
        starts=starts,
        columns={name: shard.columns[f"media_{name}"][mine].tolist() for name in COLUMNS},
        grids=shard.columns["media_grid"][mine].tolist(),
        names=shard.spans.meta["media_names"],
    )
