"""Named flat arrays in one memory-mapped file: the container of indexes, length tables and plans.

Bytes, little-endian:

    0   8  magic b"SHMLARR1"
    8   8  u64 length of the JSON header in bytes
    16  8  u64 xxh3-64 of the JSON header
    24     JSON header {"format": str, "meta": {...}, "arrays": {name: {dtype, shape, offset}}}
    ...    each array, C order, at a multiple of 64 bytes counted from the start of the file

The file ends with the last array. Offsets, shapes and dtypes are checked against the file's size
before anything is mapped, so a truncated or hostile file is a `FormatError`, never a crash.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.storage.atomic import made_file
from shardmill.storage.cache import local_copy

MAGIC = b"SHMLARR1"
PREFIX = 24
ALIGN = 64
MAX_HEADER = 16 << 20
DTYPES = frozenset({"|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"})


@dataclass(frozen=True, slots=True)
class Arrays(Mapping[str, NDArray[Any]]):
    """Read-only arrays by name, mapped and not copied, and the `meta` they were stored with."""

    path: Path
    format: str
    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return self.arrays[name]
        except KeyError:
            raise FormatError(
                f"has no array {name!r}, only {sorted(self.arrays)}", path=self.path
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def write_arrays(
    file: BinaryIO, format: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> None:
    """Write the container to an open file; the same arrays and meta give the same bytes."""
    stored = {name: _storable(name, array) for name, array in arrays.items()}
    header = _header(format, stored, meta)
    file.write(MAGIC + len(header).to_bytes(8, "little") + _checksum(header) + header)
    position = PREFIX + len(header)
    for array in stored.values():
        start = -(-position // ALIGN) * ALIGN
        file.write(bytes(start - position))
        file.write(array.reshape(-1).view(np.uint8).data if array.size else b"")
        position = start + array.nbytes


def store_arrays(
    path: Path, format: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> None:
    """Put the container at `path`, a file or an object: whole and on the disk, or not at all."""
    with made_file(path) as draft_path, draft_path.open("wb") as file:
        write_arrays(file, format, arrays, meta)


def read_format(path: Path) -> str | None:
    """Return the format name of an array file, None if a file is none."""
    with path.open("rb") as file:
        prefix = file.read(PREFIX)
        if prefix[:8] != MAGIC:
            return None
        raw = file.read(min(int.from_bytes(prefix[8:16], "little"), MAX_HEADER))
    try:
        found = orjson.loads(raw).get("format")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def open_arrays(path: Path, format: str) -> Arrays:
    """Map the arrays of a file of this format, after checking that all of them lie inside it."""
    with local_copy(path).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        prefix = file.read(PREFIX)
        if len(prefix) < PREFIX or prefix[:8] != MAGIC:
            raise FormatError("is not an array file of shardmill", path=path, offset=0)
        header_bytes = int.from_bytes(prefix[8:16], "little")
        if header_bytes > min(size - PREFIX, MAX_HEADER):
            raise FormatError(f"claims a header of {header_bytes} bytes", path=path, offset=8)
        raw = file.read(header_bytes)
        if _checksum(raw) != prefix[16:24]:
            raise FormatError("its header does not match its checksum", path=path, offset=16)
        header = _parse_header(raw, format, path)
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {
        name: _view(data, entry, size, name, path) for name, entry in header["arrays"].items()
    }
    return Arrays(path, format, header["meta"], arrays)


def _header(format: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    # Offsets depend on the header's length, which depends on the offsets: count from an upper
    # bound of the header and pad the JSON with spaces up to it.
    entries = {
        name: {"dtype": a.dtype.str, "shape": list(a.shape), "offset": 0}
        for name, a in arrays.items()
    }
    header = {"format": format, "meta": dict(meta), "arrays": entries}
    room = PREFIX + len(orjson.dumps(header)) + 20 * len(entries)
    position = room = -(-room // ALIGN) * ALIGN
    for name, array in arrays.items():
        position = -(-position // ALIGN) * ALIGN
        entries[name]["offset"] = position
        position += array.nbytes
    return orjson.dumps(header).ljust(room - PREFIX)


def _storable(name: str, array: NDArray[Any]) -> NDArray[Any]:
    stored = np.ascontiguousarray(array)
    stored = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
    if stored.dtype.str not in DTYPES:
        raise TypeError(f"array {name!r} has dtype {array.dtype}, which is not stored")
    return stored


def _parse_header(raw: bytes, format: str, path: Path) -> dict[str, Any]:
    try:
        header = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"its header is not JSON: {error}", path=path, offset=PREFIX) from error
    if (
        not isinstance(header, dict)
        or not isinstance(header.get("arrays"), dict)
        or not isinstance(header.get("meta"), dict)
    ):
        raise FormatError("its header lacks 'arrays' or 'meta'", path=path, offset=PREFIX)
    if header.get("format") != format:
        raise FormatError(f"holds {header.get('format')!r}, not {format!r}", path=path)
    return header


def _view(data: mmap.mmap, entry: Any, size: int, name: str, path: Path) -> NDArray[Any]:
    try:
        dtype, shape, offset = entry["dtype"], entry["shape"], entry["offset"]
        good = (
            dtype in DTYPES
            and isinstance(offset, int)
            and offset >= 0
            and offset % ALIGN == 0
            and len(shape) <= 8
            and all(isinstance(n, int) and 0 <= n <= size for n in shape)
        )
    except (TypeError, KeyError):
        good = False
    if not good or offset + prod(shape) * np.dtype(dtype).itemsize > size:
        raise FormatError(f"array {name!r} lies outside the file: {entry!r}", path=path)
    count = prod(shape)
    if count == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype, count, offset).reshape(shape)


def _checksum(raw: bytes) -> bytes:
    return int(xxhash.xxh3_64_intdigest(raw)).to_bytes(8, "little")
