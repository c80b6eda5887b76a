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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.formats.contract import Format, Piece, Place
from shardmill.formats.inputs import ExportInput, Slice
from shardmill.formats.packedrows import (
    PackedSample,
    identity_of,
    open_pictures,
    packed_samples,
    read_pictures,
)
from shardmill.formats.wids import write_wids_index
from shardmill.io.indexwrite import IndexRows
from shardmill.io.links import link_or_copy
from shardmill.io.names import Layout
from shardmill.io.sampleset import SampleSet
from shardmill.io.tarwrite import Content, TarWriter
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally

OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDatasetFormat(Format):
    """Tars; `samples` is the folder whose pictures and videos are copied into packed samples."""

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

    def _write_packed(
        self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally
    ) -> IndexRows:
        samples = None if self.samples is None else open_pictures(self.samples)
        index = IndexRows()
        with TarWriter(draft.file(piece.name, "tar")) as tar:
            for packed in packed_samples(source, piece):
                with tally.sample(packed.key):
                    members = self._members(packed, samples)
                    start, planned = tar.add(packed.key, members, self.layout)
                    index.add(packed.key, start, planned.exts, planned.offsets, planned.sizes)
                    index.describe((), 0, 0, "")
            end = tar.num_bytes
        index.write(draft.file(piece.name, "idx"), end=end, num_bytes=tar.num_bytes)
        draft.finish(piece.name, num_samples=len(index))
        return index

    def _members(
        self, packed: PackedSample, samples: SampleSet | None
    ) -> list[tuple[str, Content]]:
        pictures = read_pictures(packed, samples)
        media: list[tuple[str, Content]] = [
            (f"{number}.{ext}", content) for number, (ext, content) in enumerate(pictures)
        ]
        fields: dict[str, Any] = {
            "lengths": packed.lengths,
            "keys": packed.keys,
            "media": packed.media,
            "image": [str(number) for number in range(len(media))],
        }
        tokens: list[tuple[str, Content]] = []
        if self.arrays:
            tokens = [
                ("input_ids.npy", npy_bytes(packed.ids)),
                ("loss_mask.npy", npy_bytes(packed.loss_mask)),
            ]
        else:
            fields |= {"input_ids": packed.ids, "loss_mask": packed.loss_mask}
        return [("json", orjson.dumps(fields, option=OPTIONS)), *tokens, *media]


def npy_bytes(values: NDArray[Any]) -> bytes:
    """Return a flat array as the content of a .npy file."""
    return _npy_header(values.dtype.str, len(values)) + values.tobytes()


@lru_cache(maxsize=65536)
def _npy_header(dtype: str, length: int) -> bytes:
    # Version 1.0: magic, u16 length of the text, and the text, filled up to 64 bytes in all.
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({length},), }}"
    room = -(len(text) + 11) % 64
    return (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", len(text) + room + 1)
        + (text + " " * room + "\n").encode()
    )


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
