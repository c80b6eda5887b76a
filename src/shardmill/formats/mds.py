"""MosaicML's MDS shards of packed samples, as `streaming.StreamingDataset` and LocalDataset read.

    shards/00000.mds   u32 number of samples N, u32[N+1] bounds of the samples in bytes, JSON of the
                       columns, and the samples: u32 size of each column, then their contents
    index.json         {"version": 2, "shards": [...]}: what each shard holds

Columns, in this order: images, if the folder of samples is given, as list[jpeg]; input_ids as
ndarray:uint16 or int32; keys as json; lengths as ndarray:int32; loss_mask as ndarray:uint8; media
as json. An ndarray is a byte (dimensions << 2 | log2 of the bytes of a size), the size, the values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.formats.contract import Format, Piece, Place
from shardmill.formats.inputs import ExportInput, Slice
from shardmill.formats.packedrows import (
    PackedSample,
    identity_of,
    open_pictures,
    packed_samples,
    read_pictures,
)
from shardmill.io.atomic import write_file
from shardmill.io.sampleset import SampleSet
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.stage import Draft, Tally

ROLE = "mds"
INDEX_NAME = "index.json"
MAX_BYTES = (1 << 32) - 1
JPEG_START = b"\xff\xd8\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsFormat(Format):
    """MDS shards; `samples` is the folder whose pictures, all of them JPEG, are copied."""

    samples: Path | None = None

    def __post_init__(self) -> None:
        # Workers may start in another folder.
        if self.samples is not None:
            object.__setattr__(self, "samples", self.samples.absolute())

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield which folder of samples the pictures come from."""
        source.space()
        identity = identity_of(self.samples)
        for _ in ranges:
            yield {"samples": identity} if identity else {}

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write one shard."""
        samples = None if self.samples is None else open_pictures(self.samples)
        contents: list[bytes] = []
        for packed in packed_samples(source, piece):
            with tally.sample(packed.key):
                contents.append(self._encode(packed, samples))
        config = orjson.dumps(self._config(source))
        head = 4 + 4 * (len(contents) + 1) + len(config)
        bounds = head + np.cumsum([0, *map(len, contents)], dtype=np.int64)
        if int(bounds[-1]) > MAX_BYTES:
            raise ConfigError(
                f"shard {piece.name} would have {int(bounds[-1]):,} bytes, MDS holds "
                f"{MAX_BYTES:,}: cut the rows with --shards"
            )
        with draft.file(piece.name, ROLE).open("wb") as file:
            file.write(struct.pack("<I", len(contents)) + bounds.astype("<u4").tobytes() + config)
            file.writelines(contents)
        draft.finish(piece.name, num_samples=len(contents))

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write index.json."""
        filled = [shard for shard in manifest.shards if shard.num_samples]
        shards = [{**self._config(source), **_entry(shard)} for shard in filled]
        index = {"version": 2, "shards": shards}
        write_file(out_dir / INDEX_NAME, orjson.dumps(index, option=orjson.OPT_SORT_KEYS))

    def _columns(self, source: ExportInput) -> dict[str, str]:
        columns = {} if self.samples is None else {"images": "list[jpeg]"}
        return {
            **columns,
            "input_ids": f"ndarray:{source.space().dtype.name}",
            "keys": "json",
            "lengths": "ndarray:int32",
            "loss_mask": "ndarray:uint8",
            "media": "json",
        }

    def _config(self, source: ExportInput) -> dict[str, Any]:
        columns = self._columns(source)
        return {
            "version": 2,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": None,
            "column_names": list(columns),
            "column_encodings": list(columns.values()),
            "column_sizes": [None] * len(columns),
        }

    def _encode(self, packed: PackedSample, samples: SampleSet | None) -> bytes:
        columns = [
            _array(packed.ids),
            [orjson.dumps(packed.keys)],
            _array(packed.lengths),
            _array(packed.loss_mask),
            [orjson.dumps(packed.media)],
        ]
        if samples is not None:
            pictures = [picture for _, picture in read_pictures(packed, samples)]
            columns.insert(0, _picture_list(pictures))
        sizes = np.array([sum(map(len, column)) for column in columns], "<u4")
        return b"".join([sizes.tobytes(), *(part for column in columns for part in column)])


def _array(values: NDArray[Any]) -> list[bytes]:
    return [_array_head(len(values)), values.tobytes()]


@lru_cache(maxsize=65536)
def _array_head(length: int) -> bytes:
    if length == 0:
        raise SampleError("no tokens", "MDS has no arrays without values")
    code = 0 if length < 1 << 8 else 1 if length < 1 << 16 else 2
    return bytes([1 << 2 | code]) + length.to_bytes(1 << code, "little")


def _picture_list(pictures: list[memoryview]) -> list[bytes]:
    for number, picture in enumerate(pictures):
        if bytes(picture[:3]) != JPEG_START:
            raise SampleError("not a JPEG", f"medium {number}: MDS lists hold JPEG pictures only")
    sizes = np.array([len(picture) for picture in pictures], "<u4").tobytes()
    return [struct.pack("<II", 0, len(pictures)), sizes, *map(bytes, pictures)]


def _entry(shard: ShardEntry) -> dict[str, Any]:
    file = shard.files[ROLE]
    raw = {"basename": file.path, "bytes": file.num_bytes, "hashes": {}}
    return {"samples": shard.num_samples, "raw_data": raw, "zip_data": None}
