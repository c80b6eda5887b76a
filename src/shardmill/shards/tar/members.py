"""Cuts the members of samples out of their tar, by number: as views, or copied.

A sample that is read at random costs mostly Python, so this one loop over members is compiled where
there is a compiler; `PlainMemberTable` does the same elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

try:
    from shardmill.shards.tar import _members  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _members = None

Views: TypeAlias = dict[str, memoryview]
Copies: TypeAlias = dict[str, bytes]


class MemberTable(Protocol):
    """Where the members of each sample of a tar lie."""

    def views(self, number: int, chunk: memoryview, base: int, /) -> Views:
        """Return the members of a sample in a chunk that holds the tar's bytes from `base` on."""

    def copies(self, number: int, chunk: memoryview, base: int, /) -> Copies:
        """Return the same as bytes."""


class PlainMemberTable:
    """The table in Python; plain ints come out of a memoryview faster than out of an array."""

    def __init__(
        self,
        first: memoryview,
        offset: memoryview,
        size: memoryview,
        ext: memoryview,
        exts: Sequence[str],
    ) -> None:
        self._first, self._offset, self._size = first, offset, size
        self._ext, self._exts = ext, exts

    def views(self, number: int, chunk: memoryview, base: int) -> Views:
        """Return parts of the chunk."""
        if not 0 <= number < len(self._first) - 1:
            raise IndexError(f"sample {number} of {len(self._first) - 1}")
        exts, ext, offset, size = self._exts, self._ext, self._offset, self._size
        return {
            exts[ext[m]]: chunk[(start := offset[m] - base) : start + size[m]]
            for m in range(self._first[number], self._first[number + 1])
        }

    def copies(self, number: int, chunk: memoryview, base: int) -> Copies:
        """Return bytes."""
        return {ext: bytes(view) for ext, view in self.views(number, chunk, base).items()}


def member_table(
    first: memoryview, offset: memoryview, size: memoryview, ext: memoryview, exts: tuple[str, ...]
) -> MemberTable:
    """Return the table of these columns of an index, compiled if it can be."""
    made: MemberTable = (PlainMemberTable if _members is None else _members.MemberTable)(
        first, offset, size, ext, exts
    )
    return made
