"""Keys that end in a number, stored as numbers: "cc12m-00000042" is prefix "cc12m-", width 8, 42.

Arrays: `key_prefix` S (index into the prefixes), `key_number` S, `key_width` one a prefix, and the
prefixes as text columns `key_text_*`. A key without a number is a prefix of width 0. Keys are for
tracing, not for training: this makes them small, and still each can be read by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.io.arrays import Arrays
from shardmill.io.columns import narrow_column, wide_column
from shardmill.io.strings import Strings, open_strings, pack_strings

# Eighteen digits fit into 64 bits; a longer number keeps its head in the prefix.
NUMBER = re.compile(r"[0-9]{1,18}\Z")


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

    def between(self, start: int, stop: int) -> list[str]:
        """Return the keys of neighbouring rows, with less work than one at a time."""
        texts, widths = list(self.prefixes), self.widths.tolist()
        numbers, prefixes = self.number[start:stop].tolist(), self.prefix[start:stop].tolist()
        return [
            f"{texts[prefix]}{number:0{widths[prefix]}d}" if widths[prefix] else texts[prefix]
            for prefix, number in zip(prefixes, numbers)
        ]

    def find(self, key: str) -> int | None:
        """Return the row with this key, or None."""
        text, width, number = split_key(key)
        wanted = [i for i, known in enumerate(self.prefixes) if known == text]
        wanted = [i for i in wanted if int(self.widths[i]) == width]
        if not wanted:
            return None
        rows = np.flatnonzero((self.prefix == wanted[0]) & (self.number == number))
        return int(rows[0]) if len(rows) else None


def split_key(key: str) -> tuple[str, int, int]:
    """Return (prefix, width, number): "a-007" gives ("a-", 3, 7), "a" gives ("a", 0, 0)."""
    found = NUMBER.search(key)
    if found is None:
        return key, 0, 0
    return key[: found.start()], len(found[0]), int(found[0])


def pack_keys(keys: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of these keys."""
    prefixes: dict[tuple[str, int], int] = {}
    prefix, number = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    for row, key in enumerate(keys):
        text, width, number[row] = split_key(key)
        prefix[row] = prefixes.setdefault((text, width), len(prefixes))
    texts = [text.encode("utf-8", "surrogateescape") for text, _ in prefixes]
    return {
        "key_prefix": narrow_column(prefix),
        "key_number": narrow_column(number),
        "key_width": np.array([width for _, width in prefixes], np.uint8),
        **pack_strings("key_text", texts),
    }


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
