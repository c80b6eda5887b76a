"""Megatron's indexed data set: ids in `.bin`, lengths and bounds in `.idx`.

`.bin` holds the ids of all sequences after each other. `.idx`, little-endian, unaligned:

    0   9  magic b"MMIDIDX\0\0"
    9   8  u64 version 1
    17  1  u8 dtype code: 4 int32, 8 uint16
    18  8  u64 number of sequences S
    26  8  u64 number of document bounds D
    34     S x i32 length of each sequence in ids
           S x i64 byte offset of each sequence in `.bin`
           D x i64 document bounds as sequence numbers, from 0 to S
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.storage.cache import local_copy

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class MegatronIndex:
    """The mapped columns of an `.idx` file."""

    dtype: np.dtype[Any]
    lengths: NDArray[np.int32]
    offsets: NDArray[np.int64]
    documents: NDArray[np.int64]


def write_index(
    file: BinaryIO, dtype: np.dtype[Any], lengths: NDArray[Any], documents: NDArray[Any]
) -> None:
    """Write the index of sequences that lie in `.bin` without gaps.

    `documents` holds the number of the first sequence of each document; the end is added.
    """
    offsets = np.zeros(len(lengths), "<i8")
    np.cumsum(lengths[:-1], out=offsets[1:])
    bounds = np.append(documents, len(lengths)).astype("<i8")
    file.write(HEADER.pack(MAGIC, 1, CODES[dtype.str], len(lengths), len(bounds)))
    file.write(lengths.astype("<i4").tobytes())
    file.write((offsets * dtype.itemsize).tobytes())
    file.write(bounds.tobytes())


def open_index(path: Path) -> MegatronIndex:
    """Map an index; its size must be exactly what its header says."""
    raw = map_bytes(path)
    if len(raw) < HEADER.size:
        raise FormatError(f"has {len(raw)} bytes, too few for a Megatron index", path=path)
    magic, version, code, num_sequences, num_bounds = HEADER.unpack(raw[: HEADER.size])
    if magic != MAGIC or version != 1:
        raise FormatError("is not a Megatron index of version 1", path=path, offset=0)
    if code not in DTYPES:
        raise FormatError(f"has the unknown dtype code {code}", path=path, offset=17)
    if len(raw) != HEADER.size + 12 * num_sequences + 8 * num_bounds:
        raise FormatError(
            f"claims {num_sequences} sequences and {num_bounds} bounds in {len(raw)} bytes",
            path=path,
            offset=18,
        )
    offsets_at = HEADER.size + 4 * num_sequences
    return MegatronIndex(
        np.dtype(DTYPES[code]),
        np.frombuffer(raw, "<i4", num_sequences, HEADER.size),
        np.frombuffer(raw, "<i8", num_sequences, offsets_at),
        np.frombuffer(raw, "<i8", num_bounds, offsets_at + 8 * num_sequences),
    )


def map_bytes(path: Path) -> memoryview:
    """Return the bytes of a file (of a store: of a local copy), mapped read-only."""
    with local_copy(path).open("rb") as file:
        if file.seek(0, 2) == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
