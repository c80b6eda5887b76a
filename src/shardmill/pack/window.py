"""Window subset-sum: packs filled to the last token from a window of samples in arrival order.

The oldest sample of the window starts a pack. Samples are taken blindly, oldest first, while much
room is left; then a subset of the window that fills the rest exactly is searched. Sorting by
length would spend the small, flexible lengths first and leave a band that fits nothing; arrival
order keeps the mix of lengths the same to the end. `compiled.fill_window` gives the same packs.

The search keeps one integer: bit r is set when some choice of samples leaves r tokens free. Adding
a sample of length l is `reach |= reach >> l`, and the pack is full when bit 0 is set.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Filled(NamedTuple):
    """Packs as their lengths one after another and the end of each, and what is still waiting."""

    items: NDArray[np.int32]
    ends: NDArray[np.int64]
    waiting: NDArray[np.int32]


def fill_window(
    stream: NDArray[np.int32],
    capacity: int,
    window: int,
    blind: int,
    max_documents: int,
    flush: bool,
) -> Filled:
    """Return the packs of a stream; without `flush` it stops when the window runs short."""
    arriving = stream.tolist()
    waiting = arriving[:window]
    next_in = len(waiting)
    items: list[int] = []
    ends: list[int] = []
    while waiting and (flush or len(waiting) == window):
        chosen = choose(waiting, capacity, blind, max_documents)
        items += [waiting[i] for i in chosen]
        ends.append(len(items))
        for i in reversed(chosen):
            del waiting[i]
        waiting += arriving[next_in : next_in + len(chosen)]
        next_in += len(chosen)
    return Filled(np.array(items, np.int32), np.array(ends, np.int64), np.array(waiting, np.int32))


def choose(waiting: list[int], capacity: int, blind: int, max_documents: int) -> list[int]:
    """Return the places, rising, of samples for one pack; the oldest sample is always in it.

    While at least `blind` tokens would remain, the next oldest is taken without a search.
    """
    room = capacity - waiting[0]
    first = 1
    while first < len(waiting) and room - waiting[first] >= blind:
        room -= waiting[first]
        first += 1
    found, left = _search(waiting, first, room)
    if left and first > 1:
        first = 1
        found, left = _search(waiting, 1, capacity - waiting[0])
    chosen = [*range(first), *found]
    if len(chosen) > max_documents:
        return _largest_first(waiting, capacity, max_documents)
    return chosen


def _search(waiting: list[int], first: int, room: int) -> tuple[list[int], int]:
    # Places from `first` on that leave the least room, the oldest where there is a choice.
    reach = 1 << room
    steps = [reach]
    tried: list[int] = []
    for place in range(first, len(waiting)):
        if reach & 1:
            break
        if waiting[place] <= room:
            reach |= reach >> waiting[place]
            steps.append(reach)
            tried.append(place)
    left = free = (reach & -reach).bit_length() - 1
    found = []
    while free < room:
        place = tried.pop()
        steps.pop()
        if not steps[-1] >> free & 1:
            found.append(place)
            free += waiting[place]
    return found[::-1], left


def _largest_first(waiting: list[int], capacity: int, max_documents: int) -> list[int]:
    # Few documents and much of the room: after the oldest, always the largest that still fits.
    room = capacity - waiting[0]
    chosen = [0]
    free = sorted(range(1, len(waiting)), key=lambda place: -waiting[place])
    for place in free:
        if len(chosen) == max_documents:
            break
        if waiting[place] <= room:
            chosen.append(place)
            room -= waiting[place]
    return sorted(chosen)
