"""Reads MDS shards of packed samples: those that an export wrote; `mds` states the bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from shardmill.errors import FormatError, SampleError
from shardmill.formats.mds import INDEX_NAME
from shardmill.formats.packed import packed_documents, packed_row
from shardmill.formats.reader import Aspect, Part, Record, stamp, with_codes
from shardmill.io.jsontext import read_json
from shardmill.io.megatron import map_bytes
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsReader:
    """The folder of an index.json."""

    dir: str
    space: TokenSpace

    def holds(self) -> frozenset[Aspect]:
        """Return all aspects of tokens, and media if pictures were copied."""
        known: set[Aspect] = {"keys", "tokens", "words", "documents", "loss", "modality"}
        known |= {"codes"} if self.space.num_codes else set()
        has_pictures = any("images" in shard["column_names"] for shard in self._shards())
        return frozenset(known | ({"media"} if has_pictures else set()))

    def token_space(self) -> TokenSpace:
        """Return the space that was given."""
        return self.space

    def parts(self) -> Iterator[Part]:
        """Yield a part for each shard."""
        for number, shard in enumerate(self._shards()):
            yield Part(input={"shard": number}, num_records=int(shard["samples"]), passed={})

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the samples of a shard."""
        shard = self._shards()[input["shard"]]
        path = Path(self.dir) / shard["raw_data"]["basename"]
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
        record = Record(key=key, rows=packed_documents(row, fields), media=media)
        return with_codes(record, self.space) if self.space.num_codes else record


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
        return _array(content, dtype)
    if kind == "json":
        return orjson.loads(content)
    if kind == "list[jpeg]":
        return _pictures(content)
    return content


def _array(content: memoryview, dtype: str) -> NDArray[Any]:
    # One dimension, whose size takes 1, 2 or 4 bytes.
    head = 1 + (1 << content[0] % 4)
    return np.frombuffer(content[head:], dtype)


def _pictures(content: memoryview) -> list[memoryview]:
    count = int.from_bytes(content[4:8], "little")
    sizes = np.frombuffer(content[8 : 8 + 4 * count], "<u4").tolist()
    ends = (8 + 4 * count + np.cumsum(sizes)).tolist()
    return [content[end - size : end] for size, end in zip(sizes, ends)]
