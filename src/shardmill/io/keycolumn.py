"""Keys that end in a number, stored as numbers: "cc12m-00000042" is prefix "cc12m-", width 8, 42.

Arrays: `key_prefix` S (index into the prefixes), `key_number` S, `key_width` one a prefix, and the
prefixes as text columns `key_text_*`. A key without a number is a prefix of width 0. Keys are for
tracing, not for training: this makes them small, and still each can be read by itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.io.arrays import Arrays
from shardmill.io.columns import narrow_column, wide_column
from shardmill.io.strings import Strings, open_strings, pack_strings

DIGITS = "0123456789"
# They fit into 64 bits; a longer number keeps its head in the prefix.
MAX_DIGITS = 18


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
        texts = [text.encode("utf-8", "surrogateescape") for text, _ in self._prefixes]
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


def pack_keys(keys: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of these keys."""
    grown = KeyList()
    grown.extend(keys)
    return grown.arrays()


def open_keys(arrays: Arrays, num_rows: int) -> KeyColumn:
    """Return the keys of a shard of `num_rows` rows, checked."""
    prefixes, widths = open_strings(arrays, "key_text"), arrays["key_width"]
    prefix = wide_column(arrays, "key_prefix", num_rows)
    number = wide_column(arrays, "key_number", num_rows)
    if widths.shape != (len(prefixes),) or widths.dtype != np.uint8:
        raise FormatError("its key_width does not fit its prefixes", path=arrays.path)
    if num_rows and (int(prefix.max()) >= len(prefixes) or int(widths.max()) > 18):
        raise FormatError("its keys have prefixes that are not there", path=arrays.path)
    return KeyColumn(prefixes, widths, prefix, number)
