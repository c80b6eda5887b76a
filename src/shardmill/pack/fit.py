"""Best-fit decreasing over the histogram: each length goes where the least room remains after it.

Packs with equal room and contents are one class, so a step places thousands of samples at once and
the time depends on the number of distinct lengths, not of samples. `compiled.best_fit` gives the
same patterns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.pack.patterns import Patterns


@dataclass(slots=True)
class _Class:
    """Equal packs: made from those of `parent` by putting `quantity` samples of `length` in."""

    parent: int
    length: int
    quantity: int
    documents: int
    num_packs: int


def best_fit(histogram: NDArray[np.int64], capacity: int, max_documents: int) -> Patterns:
    """Return the patterns that best-fit decreasing makes of the lengths counted in `histogram`."""
    packs = _OpenPacks(capacity, max_documents)
    for length in np.flatnonzero(histogram)[::-1].tolist():
        packs.place(length, int(histogram[length]))
    return _patterns(packs.classes)


class _OpenPacks:
    """Classes of packs that still have room, found by how much."""

    def __init__(self, capacity: int, max_documents: int) -> None:
        self.capacity, self.max_documents = capacity, max_documents
        self.classes: list[_Class] = []
        self.by_room: dict[int, list[int]] = {}
        # Bit r is set when some open pack has r tokens free. With packs of 3 and 6 free it is
        # 0b1001000; a sample of 4 looks at 0b1001000 >> 4 = 0b100, lowest bit 2, so 6 free.
        self.room = 0

    def place(self, length: int, count: int) -> None:
        while count:
            above = self.room >> length
            if above == 0:
                count -= self._open(length, count)
            else:
                count -= self._fill(length, count, length + (above & -above).bit_length() - 1)

    def _open(self, length: int, count: int) -> int:
        return self._put(-1, self.capacity, 0, count, length, count)

    def _fill(self, length: int, count: int, room: int) -> int:
        at_room = self.by_room[room]
        number = at_room[-1]
        chosen = self.classes[number]
        before = chosen.num_packs
        placed = self._put(number, room, chosen.documents, before, length, count)
        if chosen.num_packs == 0:
            at_room.remove(number)
            if not at_room:
                self.room ^= 1 << room
        return placed

    def _put(
        self, parent: int, room: int, documents: int, available: int, length: int, count: int
    ) -> int:
        # Each pack takes as many as fit; a last pack takes what is left of the count.
        quantity = min(room // length, self.max_documents - documents, count)
        num_packs = min(available, count // quantity)
        if parent >= 0:
            self.classes[parent].num_packs -= num_packs
        self._add(_Class(parent, length, quantity, documents + quantity, num_packs), room)
        return quantity * num_packs

    def _add(self, new: _Class, room_before: int) -> None:
        self.classes.append(new)
        room = room_before - new.length * new.quantity
        if room and new.documents < self.max_documents:
            self.by_room.setdefault(room, []).append(len(self.classes) - 1)
            self.room |= 1 << room


def _patterns(classes: list[_Class]) -> Patterns:
    lengths: list[int] = []
    counts: list[int] = []
    starts, repeats = [0], []
    for last in classes:
        if last.num_packs == 0:
            continue
        at, run_lengths, run_counts = last, [last.length], [last.quantity]
        while at.parent >= 0:
            at = classes[at.parent]
            run_lengths.append(at.length)
            run_counts.append(at.quantity)
        lengths += reversed(run_lengths)
        counts += reversed(run_counts)
        starts.append(len(lengths))
        repeats.append(last.num_packs)
    return Patterns(
        np.array(lengths, np.int32),
        np.array(counts, np.int32),
        np.array(starts, np.int64),
        np.array(repeats, np.int64),
    )
