"""Array files: named flat arrays in one mapped file, the container of indexes, lengths and plans.

Bytes, little-endian:

    0   8  magic b"SHMLARR1"
    8   8  u64 length of the JSON header in bytes
    16  8  u64 xxh3-64 of the JSON header
    24     JSON header {"format": str, "meta": {...}, "arrays": {name: {dtype, shape, offset}}}
    ...    each array, C order, at a multiple of 64 bytes counted from the start of the file

The file ends with the last array. Offsets, shapes and dtypes are checked against the file's size
before anything is mapped, so a truncated or hostile file is a `FormatError`, never a crash.

How columns lie in it:

**Numbers** have the narrowest unsigned dtype that holds the largest value. A column that is the
same everywhere is stored as a single value, and read as a view that repeats it.

**Ragged tables**: row i owns the entries from bounds[i] to bounds[i + 1]; the bounds are one number
if every row owns that many.

**Texts** are all UTF-8 bytes (`NAME_bytes`) and the bounds of each text (`NAME_bounds`). Names of
foreign tars that are not UTF-8 are kept as they are (surrogateescape), so that they can be found.

**Keys** that end in a number are stored as numbers: "cc12m-00000042" is prefix "cc12m-", width 8,
42. Arrays: `key_prefix` (index into the prefixes) and `key_number` of each row, `key_width` of each
prefix, and the prefixes as texts `key_text_*`. A key without a number is a prefix of width 0. Keys
are for tracing, not for training: this makes them small, and still each can be read by itself.
"""

from __future__ import annotations

import io
import mmap
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import xxhash
from numpy.typing import DTypeLike, NDArray

from shardmill.errors import FormatError, foreign
from shardmill.storage.cache import local_copy
from shardmill.storage.files import made_file

MAGIC = b"SHMLARR1"
PREFIX = 24
# A cache line, so that no number of a mapped array lies across two of them.
ALIGN = 64
# The header is parsed before anything is known to be right, so it must not be huge.
MAX_HEADER = 16 << 20
DTYPES = frozenset({"|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"})
NPY: Any = np.lib.format
NPY_HEADERS = {(1, 0): NPY.read_array_header_1_0, (2, 0): NPY.read_array_header_2_0}
DIGITS = "0123456789"
# They fit into 64 bits; a longer number keeps its head in the prefix.
MAX_DIGITS = 18


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

    def checked(self, name: str, dtype: DTypeLike, *shape: int | None) -> NDArray[Any]:
        """Return an array that must have this dtype and shape; None stands for any length."""
        found = self[name]
        is_like = len(shape) == found.ndim and all(
            wanted in (None, length) for wanted, length in zip(shape, found.shape)
        )
        if found.dtype != dtype or not is_like:
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            raise FormatError(
                f"array {name!r} is {found.dtype}{list(found.shape)}, not "
                f"{np.dtype(dtype)}[{wanted}]",
                path=self.path,
            )
        return found

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
    stored = {name: _storable(name, values) for name, values in arrays.items()}
    header = _header(format, stored, meta)
    file.write(MAGIC + len(header).to_bytes(8, "little") + _checksum(header) + header)
    position = PREFIX + len(header)
    for values in stored.values():
        start = -(-position // ALIGN) * ALIGN
        file.write(bytes(start - position))
        file.write(values.reshape(-1).view(np.uint8).data if values.size else b"")
        position = start + values.nbytes


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
    if path.is_dir():
        raise FormatError(f"is a folder, not a file of the format {format!r}", path=path)
    with local_copy(path).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        prefix = file.read(PREFIX)
        if len(prefix) < PREFIX or prefix[:8] != MAGIC:
            raise FormatError(
                f"is not an array file of shardmill, of the format {format!r}", path=path, offset=0
            )
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
    for name, values in arrays.items():
        position = -(-position // ALIGN) * ALIGN
        entries[name]["offset"] = position
        position += values.nbytes
    return orjson.dumps(header).ljust(room - PREFIX)


def _storable(name: str, values: NDArray[Any]) -> NDArray[Any]:
    stored = np.ascontiguousarray(values)
    stored = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
    if stored.dtype.str not in DTYPES:
        raise TypeError(f"array {name!r} has dtype {values.dtype}, which is not stored")
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
            and type(offset) is int  # a bool is an int, too, but no offset
            and offset >= 0
            and offset % ALIGN == 0
            and 1 <= len(shape) <= 8
            and all(type(n) is int and 0 <= n <= size for n in shape)
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


def load_npy(content: bytes | memoryview, reason: str, name: str) -> NDArray[Any]:
    """Return the numbers of a `.npy` that somebody stored, otherwise a `SampleError`.

    The header is compared with the bytes before anything is allocated: it may claim any shape.
    """
    with foreign(reason, ValueError):
        file = io.BytesIO(content)
        version = NPY.read_magic(file)
        if version not in NPY_HEADERS:
            raise ValueError(f"{name} is .npy of version {version}")
        shape, is_fortran, dtype = NPY_HEADERS[version](file)
        if dtype.kind not in "biuf" or prod(shape) * dtype.itemsize != len(content) - file.tell():
            left = len(content) - file.tell()
            raise ValueError(f"{name} claims the shape {shape} of {dtype} in {left} bytes")
        flat = np.frombuffer(content, dtype, prod(shape), file.tell())
        return flat.reshape(shape, order="F" if is_fortran else "C").copy()


def narrow_column(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values in the narrowest unsigned dtype, one of them if all are equal."""
    # Most columns of most shards are constant: texts have no media, a shard has one source.
    if len(values) and bool((values == values[0]).all()):
        values = values[:1]
    return values.astype(np.min_scalar_type(int(values.max()) if values.size else 0))


def wide_column(arrays: Arrays, name: str, num_rows: int, width: int | None = None) -> NDArray[Any]:
    """Return a column with `num_rows` rows, of `width` values each if given; checks its shape."""
    stored = arrays[name]
    tail = () if width is None else (width,)
    if stored.dtype.kind != "u" or stored.shape not in ((num_rows, *tail), (1, *tail)):
        raise FormatError(f"array {name!r} must be unsigned {(num_rows, *tail)}", path=arrays.path)
    return np.broadcast_to(stored, (num_rows, *tail)) if len(stored) != num_rows else stored


def narrow_bounds(counts: NDArray[Any]) -> NDArray[Any]:
    """Return the bounds of a ragged table in which row i owns counts[i] entries."""
    if len(counts) and bool((counts == counts[0]).all()):
        return narrow_column(counts[:1])
    return narrow_column(np.concatenate([[0], np.cumsum(counts)]))


def row_slice(arrays: Arrays, name: str, row: int, num_rows: int, num_entries: int) -> slice:
    """Return the entries of a row; a `FormatError` if they are not all there."""
    bounds = arrays[name]
    if len(bounds) == 1:
        count = int(bounds[0])
        start, stop = row * count, (row + 1) * count
    elif len(bounds) == num_rows + 1:
        start, stop = int(bounds[row]), int(bounds[row + 1])
    else:
        raise FormatError(f"array {name!r} does not have {num_rows + 1} bounds", path=arrays.path)
    if not start <= stop <= num_entries:
        raise FormatError(f"{name!r} of row {row} leave the table", path=arrays.path)
    return slice(start, stop)


def bounds_between(
    arrays: Arrays, name: str, rows: range, num_rows: int, num_entries: int
) -> NDArray[np.int64]:
    """Return where the entries of neighbouring rows begin, and where the last ones end."""
    stored = arrays[name]
    if len(stored) == 1:
        bounds = np.arange(rows.start, rows.stop + 1, dtype=np.int64) * int(stored[0])
    elif len(stored) == num_rows + 1:
        bounds = stored[rows.start : rows.stop + 1].astype(np.int64)
    else:
        raise FormatError(f"array {name!r} does not have {num_rows + 1} bounds", path=arrays.path)
    if (np.diff(bounds) < 0).any() or int(bounds[-1]) > num_entries:
        raise FormatError(f"{name!r} of {rows} leave the table", path=arrays.path)
    return bounds


@dataclass(frozen=True, slots=True)
class Strings:
    """Texts by number, decoded when asked for."""

    data: memoryview
    bounds: memoryview

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> str:
        return str(self.raw(number), "utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        # ASCII has one byte a character, so one decoded text can be cut at the bounds of the bytes.
        whole = bytes(self.data)
        if not whole.isascii():
            return (self[i] for i in range(len(self)))
        text = whole.decode("ascii")
        return (text[start:end] for start, end in pairwise(self.bounds))

    def raw(self, number: int) -> memoryview:
        """Return the UTF-8 bytes of a text."""
        return self.data[self.bounds[number] : self.bounds[number + 1]]


def pack_strings(name: str, texts: Iterable[bytes]) -> dict[str, NDArray[Any]]:
    """Return the two arrays `{name}_bytes` and `{name}_bounds`."""
    texts = list(texts)
    bounds = np.fromiter(accumulate(map(len, texts), initial=0), np.uint64, len(texts) + 1)
    return {
        f"{name}_bytes": np.frombuffer(b"".join(texts), np.uint8),
        f"{name}_bounds": bounds,
    }


def open_strings(arrays: Arrays, name: str) -> Strings:
    """Return the texts of this name, after checking that their bounds rise inside the bytes."""
    data = arrays.checked(f"{name}_bytes", np.uint8, None)
    return Strings(data.data, check_bounds(arrays, f"{name}_bounds", len(data)).data)


def check_bounds(
    arrays: Arrays, name: str, end: int, num_rows: int | None = None
) -> NDArray[np.uint64]:
    """Return an array that must rise from 0 to `end`, in `num_rows` steps if given."""
    bounds = arrays.checked(name, np.uint64, None if num_rows is None else num_rows + 1)
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != end or (bounds[1:] < bounds[:-1]).any():
        raise FormatError(f"array {name!r} does not rise from 0 to {end}", path=arrays.path)
    return bounds


def encoded(text: str) -> bytes:
    """Return the bytes of a text, also of a name that was not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def hash_keys(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return the xxh3-64 of each key."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, len(keys))


def hash_columns(keys: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    """Return the arrays `hash`, the hashes of the keys, rising, and `hash_order`, their rows."""
    hashes = hash_keys(keys)
    order = np.argsort(hashes, kind="stable")
    return {"hash": hashes[order], "hash_order": order.astype(np.uint32)}


def find_keys(
    wanted: Sequence[str],
    hashes: NDArray[np.uint64],
    rows: NDArray[Any],
    key_of: Callable[[int], bytes | memoryview],
) -> NDArray[np.int64]:
    """Return the row of each key, -1 for one that is not there.

    `hashes` rise, `rows` are the rows that they belong to, and `key_of` gives the key of a row.
    """
    keys = [encoded(key) for key in wanted]
    wanted_hashes = hash_keys(keys)
    found = np.full(len(keys), -1, np.int64)
    for i, place in enumerate(np.searchsorted(hashes, wanted_hashes).tolist()):
        # Different keys may have the same hash, so the key itself decides.
        while place < len(hashes) and hashes[place] == wanted_hashes[i]:
            if key_of(int(rows[place])) == keys[i]:
                found[i] = rows[place]
                break
            place += 1
    return found


@dataclass(frozen=True, slots=True, eq=False)
class KeyColumn:
    """The keys of a shard by row."""

    prefixes: Strings
    widths: NDArray[Any]
    prefix: NDArray[Any]
    number: NDArray[Any]

    def __len__(self) -> int:
        return len(self.prefix)

    def __getitem__(self, row: int) -> str:
        prefix = int(self.prefix[row])
        width = int(self.widths[prefix])
        text = self.prefixes[prefix]
        return f"{text}{int(self.number[row]):0{width}d}" if width else text

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))

    def find(self, key: str) -> int | None:
        """Return the row with this key, or None."""
        text, width, number = split_key(key)
        wanted = [i for i, known in enumerate(self.prefixes) if known == text]
        wanted = [i for i in wanted if int(self.widths[i]) == width]
        if not wanted:
            return None
        rows = np.flatnonzero((self.prefix == wanted[0]) & (self.number == number))
        return int(rows[0]) if len(rows) else None


@dataclass(frozen=True, slots=True, eq=False)
class NumberedKeys:
    """Keys that are one prefix and numbers of at least `width` digits, made when asked for."""

    prefix: str
    width: int
    numbers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[str]:
        return (f"{self.prefix}{number:0{self.width}d}" for number in self.numbers.tolist())

    def is_plain(self) -> bool:
        """Whether every number has exactly `width` digits, and the prefix ends before them."""
        is_short = 0 < self.width <= MAX_DIGITS and self.prefix.rstrip(DIGITS) == self.prefix
        if not is_short or not len(self.numbers):
            return False
        return int(self.numbers.min()) >= 0 and int(self.numbers.max()) < 10**self.width


@dataclass(slots=True)
class KeyList:
    """Keys that grow, held as they are stored: 16 bytes each."""

    _prefixes: dict[tuple[str, int], int] = field(default_factory=dict)
    _prefix: array[int] = field(default_factory=lambda: array("q"))
    _number: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self._prefix)

    def append(self, key: str) -> None:
        """Add one key."""
        text, width, number = split_key(key)
        self._prefix.append(self._prefixes.setdefault((text, width), len(self._prefixes)))
        self._number.append(number)

    def extend(self, keys: Iterable[str] | NumberedKeys) -> None:
        """Add many keys; numbers are taken as they are."""
        if not isinstance(keys, NumberedKeys) or not keys.is_plain():
            for key in keys:
                self.append(key)
            return
        place = self._prefixes.setdefault((keys.prefix, keys.width), len(self._prefixes))
        self._prefix.frombytes(np.full(len(keys), place, np.int64).tobytes())
        self._number.frombytes(keys.numbers.astype(np.int64).tobytes())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of these keys."""
        texts = [encoded(text) for text, _ in self._prefixes]
        return {
            "key_prefix": narrow_column(np.array(self._prefix, np.int64)),
            "key_number": narrow_column(np.array(self._number, np.int64)),
            "key_width": np.array([width for _, width in self._prefixes], np.uint8),
            **pack_strings("key_text", texts),
        }


def split_key(key: str) -> tuple[str, int, int]:
    """Return (prefix, width, number): "a-007" gives ("a-", 3, 7), "a" gives ("a", 0, 0)."""
    width = min(len(key) - len(key.rstrip(DIGITS)), MAX_DIGITS)
    if not width:
        return key, 0, 0
    return key[:-width], width, int(key[-width:])


def open_keys(arrays: Arrays, num_rows: int) -> KeyColumn:
    """Return the keys of a shard of `num_rows` rows, checked."""
    prefixes = open_strings(arrays, "key_text")
    widths = arrays.checked("key_width", np.uint8, len(prefixes))
    prefix = wide_column(arrays, "key_prefix", num_rows)
    number = wide_column(arrays, "key_number", num_rows)
    if num_rows and (int(prefix.max()) >= len(prefixes) or int(widths.max()) > MAX_DIGITS):
        raise FormatError("its keys have prefixes that are not there", path=arrays.path)
    return KeyColumn(prefixes, widths, prefix, number)
