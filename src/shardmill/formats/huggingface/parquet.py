"""Token rows as columns of parquet, without a step a token.

    key         text with its length before each
    input_ids   16 bits each, as in memory: numbers into the dictionary 0, 1, 2 ...; int32 as it is
    labels      the same, with -100 at the end of the dictionary
    loss_mask   runs, straight from the spans
    modality    runs
    lengths     int32 as they are

All readers know these encodings; libraries choose others, because they do not know that ids are
numbers below 65,536 already, and that masks and levels are runs.

Parquet files of columns whose pages are ready: dictionaries, headers and the footer.

    PAR1, for each row group and column [dictionary page] data page, footer, u32 its size, PAR1

A page is a header in thrift and its content: a dictionary its values; a data page of version 1 the
levels and the values. Nothing is compressed. Columns are strings, or lists of whole numbers of at
most 32 bits, and any of them might be null to the reader, as in Arrow.

Runs as parquet stores them: levels of lists, and numbers into a dictionary.

A run of one value is varint(count << 1) and the value in as many bytes as its bits need; numbers
as they are, eight to a group, are varint(groups << 1 | 1) and all of their bits. So a list of 1,000
ids has two runs of repetition levels, and ids of 16 bits are stored as they lie in memory.

Levels of a list that may be null, of elements that may: repetition 0 begins a list and 1 goes on
with it; definition 3 is an element and 1 an empty list.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.formats.huggingface import thrift
from shardmill.formats.huggingface.thrift import Value, binary, i32, i64, listed, varint
from shardmill.formats.rows import Runs, TokenRows
from shardmill.model.sample import SEGMENT_KINDS
from shardmill.shards.weave import cells, weave
from shardmill.storage.atomic import open_to_write
from shardmill.storage.background import Scribe

MAGIC = b"PAR1"
WRITER = "shardmill"
VERSION = 2
PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8
DATA_PAGE, DICTIONARY_PAGE = 0, 2
INT32, BYTE_ARRAY = 1, 6
OPTIONAL, REPEATED = 1, 2
UNCOMPRESSED = 0
UTF8, LIST = 0, 3
CONVERTED: dict[str, int | None] = {"string": UTF8, "uint8": 11, "uint16": 12, "int32": None}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of strings, or of lists of numbers."""

    name: str
    dtype: str
    is_list: bool = True

    @property
    def physical(self) -> int:
        """The type that is stored."""
        return BYTE_ARRAY if self.dtype == "string" else INT32

    @property
    def path(self) -> tuple[str, ...]:
        """The names down to the values."""
        return (self.name, "list", "element") if self.is_list else (self.name,)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A column of one row group: levels and values in the pieces in which they lie in memory.

    With a dictionary, the values are a byte that says their bits, and runs of numbers into it.
    """

    num_values: int
    pieces: tuple[Any, ...]
    dictionary: NDArray[np.int32] | None = None


def write_parquet(
    path: Path,
    columns: Sequence[Column],
    schema: Any,
    groups: Iterable[tuple[int, Sequence[Chunk]]],
) -> None:
    """Write row groups, each its number of rows and a chunk a column, while the next is made.

    `schema` is the Arrow schema of the columns; readers find it, and its metadata, in the footer.
    """
    found: list[tuple[int, Value]] = []
    with open_to_write(path) as file:
        file.write(MAGIC)
        with Scribe() as scribe:
            for group in groups:
                scribe.write(lambda g: found.append(_write_group(file, columns, *g)), group)
        num_rows = sum(count for count, _ in found)
        footer = thrift.struct(
            {
                1: i32(VERSION),
                2: listed([*_schema_elements(columns)]),
                3: i64(num_rows),
                4: listed([group for _, group in found]),
                5: listed([*_metadata(schema)]),
                6: binary(WRITER),
            }
        )[1]
        file.write(footer + struct.pack("<I", len(footer)) + MAGIC)


def _write_group(
    file: BinaryIO, columns: Sequence[Column], num_rows: int, chunks: Sequence[Chunk]
) -> tuple[int, Value]:
    """Write a row group and return its rows and its entry in the footer."""
    start = file.tell()
    entries = [_write_chunk(file, column, chunk) for column, chunk in zip(columns, chunks)]
    fields = {1: listed(entries), 2: i64(file.tell() - start), 3: i64(num_rows)}
    return num_rows, thrift.struct(fields)


def _write_chunk(file: BinaryIO, column: Column, chunk: Chunk) -> Value:
    start = file.tell()
    if chunk.dictionary is not None:
        content = chunk.dictionary.astype("<i4", copy=False)
        about = thrift.struct({1: i32(len(content)), 2: i32(PLAIN)})
        _write_page(file, DICTIONARY_PAGE, {7: about}, [content])
    data_at = file.tell()
    encoding = PLAIN if chunk.dictionary is None else RLE_DICTIONARY
    about = thrift.struct({1: i32(chunk.num_values), 2: i32(encoding), 3: i32(RLE), 4: i32(RLE)})
    _write_page(file, DATA_PAGE, {5: about}, chunk.pieces)
    num_bytes = file.tell() - start
    encodings = [RLE, PLAIN] if chunk.dictionary is None else [RLE, PLAIN, RLE_DICTIONARY]
    about = thrift.struct(
        {
            1: i32(column.physical),
            2: listed([i32(number) for number in encodings]),
            3: listed([binary(name) for name in column.path]),
            4: i32(UNCOMPRESSED),
            5: i64(chunk.num_values),
            6: i64(num_bytes),
            7: i64(num_bytes),
            9: i64(data_at),
            11: None if chunk.dictionary is None else i64(start),
        }
    )
    return thrift.struct({2: i64(start), 3: about})


def _write_page(
    file: BinaryIO, kind: int, about: Mapping[int, Value], pieces: Sequence[Any]
) -> None:
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    size = i32(sum(len(view) for view in views))
    file.write(thrift.struct({1: i32(kind), 2: size, 3: size, **about})[1])
    for view in views:
        file.write(view)


def _schema_elements(columns: Sequence[Column]) -> Iterable[Value]:
    yield thrift.struct({4: binary("schema"), 5: i32(len(columns))})
    for column in columns:
        if column.is_list:
            yield _group(column.name, OPTIONAL, LIST)
            yield _group("list", REPEATED, None)
        converted = CONVERTED[column.dtype]
        yield thrift.struct(
            {
                1: i32(column.physical),
                3: i32(OPTIONAL),
                4: binary(column.path[-1]),
                6: None if converted is None else i32(converted),
            }
        )


def _group(name: str, repetition: int, converted: int | None) -> Value:
    """Return the schema's element for a node with one child."""
    kind = None if converted is None else i32(converted)
    return thrift.struct({3: i32(repetition), 4: binary(name), 5: i32(1), 6: kind})


def _metadata(schema: Any) -> Iterable[Value]:
    encoded = base64.b64encode(schema.serialize())
    for key, content in {**schema.metadata, b"ARROW:schema": encoded}.items():
        yield thrift.struct({1: binary(key), 2: binary(content)})


GROUP = 8
EMPTY, ELEMENT = 1, 3


def runs(values: NDArray[Any], counts: NDArray[Any]) -> bytes:
    """Return runs of values below 256; neighbours that are equal become one."""
    used = np.flatnonzero(counts)
    values, counts = values[used], counts[used]
    first = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    if not len(first):
        return b""
    headers = np.add.reduceat(counts.astype(np.int64, copy=False), first) << 1
    num_bytes = -(-int(headers.max()).bit_length() // 7)
    table = np.empty((len(headers), num_bytes + 1), np.uint8)
    is_used = np.ones(table.shape, bool)
    for byte in range(num_bytes):
        table[:, byte] = headers & 0x7F | (headers > 0x7F) << 7
        is_used[:, byte] = headers > 0
        headers >>= 7
    table[:, -1] = values[first]
    return bytes(table[is_used])


def plain_numbers(values: NDArray[np.uint16]) -> tuple[bytes, NDArray[np.uint16], bytes]:
    """Return numbers of 16 bits as one run: what comes before them, they, and what fills it up."""
    num_groups = -(-len(values) // GROUP)
    header = varint(num_groups << 1 | 1) if num_groups else b""
    return header, values, bytes(2 * (num_groups * GROUP - len(values)))


def list_levels(bounds: NDArray[np.int64]) -> tuple[int, bytes]:
    """Return how many levels the lists between these bounds have, and both kinds of levels."""
    lengths = np.diff(bounds)
    counts = np.maximum(lengths, 1)  # an empty list has levels as well
    repetition = np.ones(2 * len(counts), np.int64)
    repetition[1::2] = counts - 1
    begins_or_goes_on = np.tile(np.array([0, 1], np.uint8), len(counts))
    definition = np.where(lengths > 0, np.uint8(ELEMENT), np.uint8(EMPTY))
    levels = runs(begins_or_goes_on, repetition), runs(definition, counts)
    return int(counts.sum()), b"".join(struct.pack("<I", len(level)) + level for level in levels)


def value_levels(num_values: int) -> bytes:
    """Return the levels of values that might be null, and are not."""
    level = runs(np.array([1]), np.array([num_values]))
    return struct.pack("<I", len(level)) + level


NO_LABEL = -100
MAX_ENTRIES = 1 << 16
Values: TypeAlias = tuple[NDArray[np.int32] | None, tuple[Any, ...]]  # dictionary, pieces of a page


def chunks_of(rows: TokenRows, names: Sequence[str]) -> list[Chunk]:
    """Return the columns of these names."""
    num_levels, levels = list_levels(rows.bounds)
    found = []
    for name in names:
        if name in TOKEN_VALUES:
            dictionary, values = TOKEN_VALUES[name](rows)
            found.append(Chunk(num_levels, (levels, *values), dictionary))
        else:
            found.append(_keys(rows) if name == "key" else _lengths(rows))
    return found


def _ids(rows: TokenRows) -> Values:
    ids = rows.ids
    if ids.itemsize > 2:
        return None, (ids.astype("<i4", copy=False),)
    return np.arange(int(ids.max(initial=0)) + 1, dtype=np.int32), _numbers(ids)


def _labels(rows: TokenRows) -> Values:
    ids, learned = rows.ids, rows.part.loss_mask().view(bool)
    none = int(ids.max(initial=0)) + 1
    if ids.itemsize > 2 or none >= MAX_ENTRIES:
        return None, (np.where(learned, ids.astype("<i4"), np.int32(NO_LABEL)),)
    dictionary = np.append(np.arange(none, dtype=np.int32), np.int32(NO_LABEL))
    return dictionary, _numbers(np.where(learned, ids, np.uint16(none)))


def _loss_mask(rows: TokenRows) -> Values:
    return _runs(2, rows.part.loss_runs())


def _modality(rows: TokenRows) -> Values:
    return _runs(len(SEGMENT_KINDS), rows.part.modality_runs())


TOKEN_VALUES: dict[str, Callable[[TokenRows], Values]] = {
    "input_ids": _ids,
    "loss_mask": _loss_mask,
    "labels": _labels,
    "modality": _modality,
}


def _runs(num_values: int, found: Runs) -> Values:
    """Return runs of a few values, which are their own numbers in the dictionary."""
    num_bits = (num_values - 1).bit_length()
    return np.arange(num_values, dtype=np.int32), (bytes([num_bits]), runs(*found))


def _numbers(values: NDArray[Any]) -> tuple[Any, ...]:
    """Return numbers of 16 bits into a dictionary."""
    return bytes([16]), *plain_numbers(values.astype("<u2", copy=False))


def _keys(rows: TokenRows) -> Chunk:
    """Return the keys, each as the four bytes of its length and its text."""
    keys = rows.key_texts()
    content = weave([cells(keys.lengths.astype("<u4")[:, None]), keys]).data
    return Chunk(len(rows), (value_levels(len(rows)), content))


def _lengths(rows: TokenRows) -> Chunk:
    num_levels, levels = list_levels(rows.stored)
    return Chunk(num_levels, (levels, rows.part.lengths.astype("<i4", copy=False)))
