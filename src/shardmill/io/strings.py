"""Many short texts as two flat arrays: all UTF-8 bytes, and the bounds of each text.

Text i is `bytes[bounds[i] : bounds[i + 1]]`. Names of foreign tars that are not UTF-8 are kept as
they are (surrogateescape), so that they can still be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.io.arrays import Arrays


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
    data, bounds = arrays[f"{name}_bytes"], arrays[f"{name}_bounds"]
    check_bounds(arrays, f"{name}_bounds", len(data))
    if data.dtype != np.uint8 or data.ndim != 1:
        raise FormatError(f"array '{name}_bytes' is not flat bytes", path=arrays.path)
    return Strings(data.data, bounds.data)


def check_bounds(arrays: Arrays, name: str, end: int) -> None:
    """Raise `FormatError` unless the array rises from 0 to `end`."""
    bounds = arrays[name]
    if (
        bounds.ndim != 1
        or bounds.dtype != np.uint64
        or len(bounds) == 0
        or bounds[0] != 0
        or bounds[-1] != end
        or bool((bounds[1:] < bounds[:-1]).any())
    ):
        raise FormatError(f"array {name!r} does not rise from 0 to {end}", path=arrays.path)
