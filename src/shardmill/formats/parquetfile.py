"""Parquet files of columns whose pages are ready: dictionaries, headers and the footer.

    PAR1, for each row group and column [dictionary page] data page, footer, u32 its size, PAR1

A page is a header in thrift and its content: a dictionary its values; a data page of version 1 the
levels and the values. Nothing is compressed. Columns are strings, or lists of whole numbers of at
most 32 bits, and any of them might be null to the reader, as in Arrow.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shardmill.formats import thrift
from shardmill.formats.thrift import Value, binary, i32, i64, listed
from shardmill.io.pieces import open_to_write
from shardmill.io.scribe import Scribe

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
