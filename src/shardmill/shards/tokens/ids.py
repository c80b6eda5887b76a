"""The ids of a token shard: Megatron's indexed dataset, mapped or read from a store.

`.bin` holds the ids of all sequences after each other. `.idx`, little-endian, unaligned:

    0   9  magic b"MMIDIDX\\0\\0"
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
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from shardmill.errors import FormatError
from shardmill.storage.blob import RemoteBlob
from shardmill.storage.cache import local_copy
from shardmill.storage.path import UrlPath

MAGIC = b"MMIDIDX\x00\x00"
# Of the third file of a shard, which says what ids cannot (see `shard`).
SPANS_FORMAT = "token-spans"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
CODES = {dtype: code for code, dtype in DTYPES.items()}

# So many bytes of ids have one checksum: to verify a row of 2 kB takes reading 32 times as much,
# and the checksums take an eighth of a thousandth of what the ids take.
SUM_BYTES = 1 << 16

# So at most 24 MiB are held for an object.
BLOCK_BYTES = 8 << 20
BLOCKS_HELD = 3
BLOCKS_AHEAD = 2
# A row that begins so close behind a recent one is read on: other workers take what lies between.
NEAR_BYTES = 1 << 20
NUM_RECENT = 4


@dataclass(frozen=True, slots=True)
class MegatronIndex:
    """The mapped columns of an `.idx` file."""

    dtype: np.dtype[Any]
    lengths: NDArray[np.int32]
    offsets: NDArray[np.int64]
    documents: NDArray[np.int64]


def write_megatron_index(
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


def open_megatron_index(path: Path) -> MegatronIndex:
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


def block_sums(path: Path) -> NDArray[np.uint64]:
    """Return the xxh3-64 of each 64 KiB of a file."""
    raw = map_bytes(path)
    blocks = (raw[start : start + SUM_BYTES] for start in range(0, len(raw), SUM_BYTES))
    return np.fromiter(map(xxh3_64_intdigest, blocks), np.uint64)


def open_ids(path: Path, dtype: np.dtype[Any]) -> NDArray[Any] | RemoteIds:
    """Return the ids of a `.bin` file, mapped; those in a store are read when sliced."""
    if isinstance(path, UrlPath):
        return RemoteIds(RemoteBlob(str(path)), dtype)
    raw = map_bytes(path)
    if len(raw) % dtype.itemsize:
        raise FormatError(f"has {len(raw)} bytes, its index says otherwise", path=path)
    return np.frombuffer(raw, dtype)


class RemoteIds:
    """The ids of one `.bin` object in a store; slices are arrays, as if it were in memory.

    Rows that are read one after the other come in blocks, with the next ones on their way; rows
    that are read here and there come each by itself, or together if they were announced. At most a
    few blocks are held. Safe to use from several threads.
    """

    def __init__(self, blob: RemoteBlob, dtype: np.dtype[Any]) -> None:
        self._blob, self.dtype = blob, dtype
        self._lock = Lock()
        self._recent: deque[int] = deque(maxlen=NUM_RECENT)
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()

    @property
    def itemsize(self) -> int:
        """Bytes of an id."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all ids."""
        return self._blob.num_bytes

    @property
    def size(self) -> int:
        """The number of ids."""
        return self.nbytes // self.itemsize

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, wanted: slice) -> NDArray[Any]:
        first, last, step = wanted.indices(self.size)
        if step != 1:
            raise ValueError("ids in a store are read without a step")
        start, end = first * self.itemsize, max(first, last) * self.itemsize
        content = self._blob.take_announced(start, end - start)
        if content is None:
            content = self._read(start, end)
        return np.frombuffer(content, self.dtype)

    def prefetch(self, places: Sequence[tuple[int, int]]) -> None:
        """Say that these rows, as (first id, number of ids), will be read soon."""
        size = self.itemsize
        ranges = [(first * size, length * size) for first, length in places]
        self._blob.prefetch([r for r in ranges if not self._holds(*r)])

    def _read(self, start: int, end: int) -> memoryview:
        if end == start:
            return memoryview(b"")
        if not self._goes_on(start, end):
            return self._blob.view_all([(start, end - start)])[0]
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        if len(blocks) == 1:
            return blocks[0][start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]
        joined = memoryview(b"".join(blocks))
        return joined[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _goes_on(self, start: int, end: int) -> bool:
        with self._lock:
            found = any(0 <= start - recent <= NEAR_BYTES for recent in self._recent)
            self._recent.append(end)
            return found or start // BLOCK_BYTES in self._blocks

    def _holds(self, start: int, length: int) -> bool:
        with self._lock:
            return start // BLOCK_BYTES in self._blocks

    def _block(self, number: int) -> memoryview:
        with self._lock:
            if number not in self._blocks:
                (self._blocks[number],) = self._blob.view_all([self._place(number)])
                while len(self._blocks) > BLOCKS_HELD:
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(number)
            for coming in range(number + 1, number + 1 + BLOCKS_AHEAD):
                if coming * BLOCK_BYTES < self.nbytes and coming not in self._blocks:
                    self._blob.prefetch([self._place(coming)])
            return self._blocks[number]

    def _place(self, number: int) -> tuple[int, int]:
        start = number * BLOCK_BYTES
        return start, min(BLOCK_BYTES, self.nbytes - start)
