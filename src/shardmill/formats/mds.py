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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.formats.format import (
    OF_ROWS,
    Aspect,
    Format,
    Part,
    Place,
    Reader,
    Record,
    as_promised,
    file_inside,
    guarded,
    needed_space,
    stamp,
    with_codes,
)
from shardmill.formats.packed import (
    identity_of,
    open_media,
    packed_documents,
    packed_row,
    read_media,
)
from shardmill.formats.rows import ExportInput, Piece, Slice, packed_samples, token_batches
from shardmill.model.codec import PlaceName
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally
from shardmill.shards.samples import SampleDataset
from shardmill.shards.tokens.ids import map_bytes
from shardmill.storage.files import write_file
from shardmill.storage.text import read_json

ROLE = "mds"
INDEX_NAME = "index.json"
MAX_BYTES = (1 << 32) - 1  # the bounds of samples are u32
JPEG_START = b"\xff\xd8\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsFormat(Format):
    """MDS shards; `samples` is the folder whose images, all of them JPEG, are copied."""

    samples: Path | None = None

    @property
    def keeps(self) -> frozenset[Aspect]:
        """All that a row or pack has."""
        return OF_ROWS | {"packs"}

    def __post_init__(self) -> None:
        # Workers may start in another folder.
        if self.samples is not None:
            object.__setattr__(self, "samples", self.samples.absolute())

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield which folder of samples the images come from."""
        source.space()
        identity = identity_of(self.samples)
        for _ in ranges:
            yield {"samples": identity} if identity else {}

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write one shard: the samples first, since only they tell where each of them begins."""
        samples = None if self.samples is None else open_media(self.samples)
        config = orjson.dumps(self._config(source))
        num_rows = sum(len(batch) for batch in token_batches(source, piece.slices))
        first = len(_head([0] * num_rows, 0, config))
        sizes: list[int] = []
        with draft.file(piece.name, ROLE).open("wb") as file:
            file.seek(first)
            for key, fields in packed_samples(source, piece):
                with tally.sample(key):
                    content = _encode_sample(fields, samples)
                    file.write(content)
                    sizes.append(len(content))
            if first + sum(sizes) > MAX_BYTES:
                raise ConfigError(
                    f"shard {piece.name} would have {first + sum(sizes):,} bytes, MDS holds "
                    f"{MAX_BYTES:,}: cut the rows with --shards"
                )
            file.seek(0)
            file.write(_head(sizes, first, config))
        draft.finish(piece.name, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write index.json."""
        filled = [shard for shard in manifest.shards if shard.num_samples]
        shards = [{**self._config(source), **_entry(shard)} for shard in filled]
        index = {"version": 2, "shards": shards}
        write_file(out_dir / INDEX_NAME, orjson.dumps(index, option=orjson.OPT_SORT_KEYS))

    def open(self, folder: Path, space: TokenSpace | None) -> Reader:
        """Return the reader of an export."""
        return MdsReader(dir=str(folder), space=needed_space(space, folder))

    def _config(self, source: ExportInput) -> dict[str, Any]:
        columns = {} if self.samples is None else {"images": "list[jpeg]"}
        columns |= {
            "input_ids": f"ndarray:{source.space().dtype.name}",
            "keys": "json",
            "lengths": "ndarray:int32",
            "loss_mask": "ndarray:uint8",
            "media": "json",
        }
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


def _head(sizes: Sequence[int], first: int, config: bytes) -> bytes:
    """Return what stands before the samples; `first` is where they begin.

    Where samples were rejected there is more room than needed, which blanks after the JSON fill.
    """
    bounds = first + np.cumsum([0, *sizes])
    head = struct.pack("<I", len(sizes)) + bounds.astype("<u4").tobytes() + config
    return head.ljust(first)


def _encode_sample(fields: Mapping[str, Any], samples: SampleDataset | None) -> bytes:
    if not len(fields["input_ids"]):
        raise SampleError("no tokens", "MDS has no arrays without values")
    columns = [
        _encode_array(fields["input_ids"]),
        orjson.dumps(fields["keys"]),
        _encode_array(fields["lengths"]),
        _encode_array(fields["loss_mask"]),
        orjson.dumps(fields["media"]),
    ]
    if samples is not None:
        columns.insert(0, _encode_images([image for _, image in read_media(fields, samples)]))
    return b"".join([struct.pack(f"<{len(columns)}I", *map(len, columns)), *columns])


def _encode_array(values: NDArray[Any]) -> bytes:
    """Return values of one dimension, whose size takes 1, 2 or 4 bytes."""
    length = len(values)
    # 300 values: code 1, so the head is 0b101 and the size takes two bytes.
    code = (length >= 1 << 8) + (length >= 1 << 16)
    return bytes([1 << 2 | code]) + length.to_bytes(1 << code, "little") + values.tobytes()


def _encode_images(images: Sequence[memoryview]) -> bytes:
    for number, image in enumerate(images):
        if bytes(image[:3]) != JPEG_START:
            raise SampleError("not a JPEG", f"medium {number}: MDS lists hold JPEG images only")
    sizes = np.array([len(image) for image in images], "<u4").tobytes()
    return b"".join([struct.pack("<II", 0, len(images)), sizes, *images])


def _entry(shard: ShardEntry) -> dict[str, Any]:
    file = shard.files[ROLE]
    raw = {"basename": file.path, "bytes": file.num_bytes, "hashes": {}}
    return {"samples": shard.num_samples, "raw_data": raw, "zip_data": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsReader:
    """The folder of an index.json."""

    dir: PlaceName
    space: TokenSpace

    def holds(self) -> frozenset[Aspect]:
        """Return all aspects of tokens, and media if images were copied."""
        known: set[Aspect] = {*OF_ROWS, "words", "packs"}
        known |= {"codes"} if self.space.num_codes else set()
        with as_promised(self.dir):
            has_images = any("images" in shard["column_names"] for shard in self._shards())
        return frozenset(known | ({"media"} if has_images else set()))

    def token_space(self) -> TokenSpace:
        """Return the space that was given."""
        return self.space

    @guarded
    def parts(self) -> Iterator[Part]:
        """Yield a part for each shard."""
        for number, shard in enumerate(self._shards()):
            yield Part(input={"shard": number}, num_records=int(shard["samples"]), passed={})

    @guarded
    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the samples of a shard."""
        shard = self._shards()[input["shard"]]
        path = file_inside(self.dir, shard["raw_data"]["basename"])
        raw = map_bytes(path)
        encodings = dict(zip(shard["column_names"], shard["column_encodings"]))
        for number, content in enumerate(_samples(raw, int(shard["samples"]), path)):
            try:
                yield self._record(_columns(content, encodings), path.name, number)
            except SampleError as problem:
                yield Record(key=f"{path.stem}-{number:08d}", problem=problem)

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the index."""
        path = Path(self.dir) / INDEX_NAME
        return {str(path): stamp(path)}

    def _shards(self) -> list[dict[str, Any]]:
        path = Path(self.dir) / INDEX_NAME
        index = read_json(path)
        if not isinstance(index, dict) or index.get("version") != 2:
            raise FormatError("is not an MDS index of version 2", path=path)
        shards: list[dict[str, Any]] = index["shards"]
        return shards

    def _record(self, fields: dict[str, Any], name: str, number: int) -> Record:
        key = f"{name.partition('.')[0]}-{number:08d}"
        origin = Origin(source="mds", path=name, row=number)
        row = packed_row(key, fields, self.space, origin)
        media = tuple(xxhash.xxh3_64_hexdigest(content) for content in fields.get("images", ()))
        return with_codes(
            Record(key=key, rows=packed_documents(row, fields), media=media), self.space
        )


def _samples(raw: memoryview, count: int, path: Path) -> Iterator[memoryview]:
    if len(raw) < 4 * count + 8 or int.from_bytes(raw[:4], "little") != count:
        raise FormatError(f"does not hold the {count} samples of its index", path=path)
    bounds = np.frombuffer(raw, "<u4", offset=4, count=count + 1).tolist()
    if bounds[-1] != len(raw) or sorted(bounds) != bounds:
        raise FormatError("its samples do not end with the file: it was cut off", path=path)
    return (raw[start:end] for start, end in pairwise(bounds))


def _columns(content: memoryview, encodings: Mapping[str, str]) -> dict[str, Any]:
    head = 4 * len(encodings)
    sizes = np.frombuffer(content[:head], "<u4").tolist()
    if head + sum(sizes) != len(content):
        raise SampleError("not a packed sample", f"its columns have {sum(sizes)} bytes")
    fields, at = {}, head
    for (name, encoding), size in zip(encodings.items(), sizes):
        fields[name] = _decode(content[at : at + size], encoding)
        at += size
    return fields


def _decode(content: memoryview, encoding: str) -> Any:
    kind, _, dtype = encoding.partition(":")
    if kind == "ndarray" and dtype:
        return _decode_array(content, dtype)
    if kind == "json":
        return orjson.loads(content)
    if kind == "list[jpeg]":
        return _decode_images(content)
    return content


def _decode_array(content: memoryview, dtype: str) -> NDArray[Any]:
    # One dimension, whose size takes 1, 2 or 4 bytes.
    head = 1 + (1 << content[0] % 4)
    return np.frombuffer(content[head:], dtype)


def _decode_images(content: memoryview) -> list[memoryview]:
    count = int.from_bytes(content[4:8], "little")
    sizes = np.frombuffer(content[8 : 8 + 4 * count], "<u4").tolist()
    ends = (8 + 4 * count + np.cumsum(sizes)).tolist()
    return [content[end - size : end] for size, end in zip(sizes, ends)]
