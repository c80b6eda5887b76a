"""WebDataset tars with a list for wids: packed samples of token shards, or samples as they are.

A packed sample K has these members; the media are there if the folder of samples is given:

    K.json                              {"lengths", "keys", "media", "image"}, and without arrays
                                        also "input_ids", "loss_mask", as video pipelines want them
    K.input_ids.npy, K.loss_mask.npy    with arrays
    K.0.jpg, K.1.mp4                    dotted, as stock webdataset groups them, or K-0.jpg, dashed

Tars of samples are linked, not copied. OUT/shardindex.json lists all tars; see wids.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.formats.format import ExportInput, Format, Piece, Place, Slice
from shardmill.formats.packedrows import (
    PackedBatch,
    identity_of,
    ids_json,
    keys_json,
    lengths_json,
    mask_json,
    media_json,
    open_images,
    packed_batches,
    read_images,
)
from shardmill.formats.webdataset.wids import write_wids_index
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally
from shardmill.shards.samples import SampleDataset
from shardmill.shards.tar.batch import Member, lay_out
from shardmill.shards.tar.index import IndexRows
from shardmill.shards.tar.names import Layout
from shardmill.shards.tar.write import TarWriter
from shardmill.shards.weave import (
    Column,
    between,
    constant,
    filling,
    json_object,
    numbers,
    texts,
    weave,
)
from shardmill.storage.atomic import link_or_copy
from shardmill.storage.background import Room, in_turns

NPY_HEAD = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDatasetFormat(Format):
    """Tars; `samples` is the folder whose images and videos are copied into packed samples."""

    samples: Path | None = None
    layout: Layout = "dotted"
    arrays: bool = False

    def __post_init__(self) -> None:
        # Workers may start in another folder.
        if self.samples is not None:
            object.__setattr__(self, "samples", self.samples.absolute())

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield which folder of samples the media come from; samples stay shard by shard."""
        if not source.has_tokens:
            _check_whole(source, ranges)
        identity = identity_of(self.samples)
        for _ in ranges:
            yield {"samples": identity} if identity else {}

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write one tar and its index."""
        if source.has_tokens:
            self._write_packed(source, piece, draft, tally)
        else:
            _link_samples(source, piece, draft, tally)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write the list of tars for wids."""
        write_wids_index(out_dir, name=out_dir.name, shards=manifest.shards)

    def _write_packed(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        samples = None if self.samples is None else open_images(self.samples)
        with TarWriter(draft.file(piece.name, "tar")) as tar:
            sink = _Sink(tar, IndexRows(), tally)
            for batch in packed_batches(source, piece):
                if samples is not None or not self._add_together(batch, sink):
                    self._add_each(batch, samples, sink)
            end = tar.num_bytes
        index = sink.index
        index.write(draft.file(piece.name, "idx"), end=end, num_bytes=tar.num_bytes)
        draft.finish(piece.name, num_samples=len(index))

    def _add_together(self, batch: PackedBatch, sink: _Sink) -> bool:
        """Add a batch at once; False if one of its samples must be looked at by itself."""
        members = self._members(batch, constant(b"[]", len(batch)), *next(sink.rooms))
        laid = lay_out(batch.names, members, self.layout)
        start = None if laid is None else sink.tar.extend(laid)
        if laid is None or start is None:
            return False
        sink.index.extend(laid, start)
        sink.tally.num_in += len(batch)
        sink.tally.num_kept += len(batch)
        return True

    def _add_each(self, batch: PackedBatch, samples: SampleDataset | None, sink: _Sink) -> None:
        """Add the samples of a batch one by one, with their media."""
        counts = np.diff(batch.sample_media) * (samples is not None)
        names = texts([orjson.dumps([str(n) for n in range(c)]) for c in counts.tolist()])
        members = self._members(batch, names, *next(sink.rooms))
        fields = [(ext, weave(columns)) for ext, columns in members]
        for row, key in enumerate(batch.keys):
            with sink.tally.sample(key):
                found = [] if samples is None else read_images(batch, row, samples)
                media = [(f"{n}.{ext}", content) for n, (ext, content) in enumerate(found)]
                contents = [*((ext, column[row]) for ext, column in fields), *media]
                start, planned = sink.tar.add(key, contents, self.layout)
                sink.index.add(key, start, planned.exts, planned.offsets, planned.sizes)

    def _members(
        self, batch: PackedBatch, image: Column, ids_room: Room, mask_room: Room
    ) -> list[Member]:
        """Return the members without media; `image` are their names in JSON."""
        fields = {
            "image": [image],
            "keys": keys_json(batch),
            "lengths": lengths_json(batch),
            "media": media_json(batch),
        }
        if self.arrays:
            ids, mask, bounds = batch.rows.ids, batch.rows.part.loss_mask(), batch.rows.bounds
            return [
                ("json", json_object(fields, len(batch))),
                ("input_ids.npy", npy_columns(ids, bounds)),
                ("loss_mask.npy", npy_columns(mask, bounds)),
            ]
        fields |= {
            "input_ids": ids_json(batch, ids_room),
            "loss_mask": mask_json(batch, mask_room),
        }
        return [("json", json_object(dict(sorted(fields.items())), len(batch)))]


@dataclass(frozen=True, slots=True, eq=False)
class _Sink:
    """Where the samples of a unit go; `rooms` are for ids and masks as text, of a batch each."""

    tar: TarWriter
    index: IndexRows
    tally: Tally
    rooms: Iterator[tuple[Room, Room]] = field(
        default_factory=lambda: in_turns(lambda: (Room(), Room()))
    )


def npy_columns(values: NDArray[Any], bounds: NDArray[np.int64]) -> list[Column]:
    """Return the contents of .npy files with the values between the bounds, to be woven."""
    lengths = np.diff(bounds)
    # Version 1.0: magic, u16 length of the text, and the text, filled up to 64 or 128 bytes in all,
    # which are 128 for a flat array of any length.
    magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", NPY_HEAD - 10)
    before = f"{{'descr': '{values.dtype.str}', 'fortran_order': False, 'shape': (".encode()
    digits, after = numbers(lengths), b",), }"
    blanks = NPY_HEAD - 1 - len(magic + before + after) - digits.lengths
    return [
        constant(magic + before, len(lengths)),
        digits,
        constant(after, len(lengths)),
        filling(blanks, b" "),
        constant(b"\n", len(lengths)),
        between(values, bounds),
    ]


def _check_whole(source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> None:
    for slices in ranges:
        if len(slices) != 1 or len(slices[0]) != source.shards[slices[0].shard].num_samples:
            raise ConfigError("tars of samples are linked as they are: leave out --shards")
    for shard in source.shards:
        if "tar" not in shard.files or "idx" not in shard.files:
            raise ConfigError(
                f"{source.folder}: shard {shard.name} has no tar of its own: give a folder of "
                "tokens, or one that ingest, filter or frames made"
            )


def _link_samples(source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
    shard = source.shards[piece.slices[0].shard]
    for role in ("tar", "idx"):
        link_or_copy(source.folder / shard.files[role].path, draft.file(piece.name, role))
    tally.num_in += shard.num_samples
    tally.num_kept += shard.num_samples
    draft.finish(piece.name, num_samples=shard.num_samples)
