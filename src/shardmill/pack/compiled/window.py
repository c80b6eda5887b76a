"""Window subset-sum as `pack.window` does it, with the reachable rooms as rows of 64-bit words."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardmill.pack.compiled.decorator import compiled, inlined

ONE = np.uint64(1)


@compiled
def fill_window(
    stream: Any, capacity: int, window: int, blind: int, max_documents: int, flush: bool
) -> Any:
    """Return items, pack ends and what still waits."""
    waiting = np.empty(window, np.int32)
    chosen = np.zeros(window, np.bool_)
    tried = np.empty(window, np.int64)
    steps = np.zeros((window + 1) * ((capacity >> 6) + 2), np.uint64)
    items = np.empty(len(stream), np.int32)
    ends = np.empty(len(stream), np.int64)
    num_waiting = next_in = num_items = num_packs = 0
    while True:
        while num_waiting < window and next_in < len(stream):
            waiting[num_waiting] = stream[next_in]
            num_waiting += 1
            next_in += 1
        if num_waiting == 0 or (num_waiting < window and not flush):
            break
        last = _choose(waiting[:num_waiting], capacity, blind, max_documents, chosen, tried, steps)
        kept = 0
        for place in range(last):
            if chosen[place]:
                chosen[place] = False
                items[num_items] = waiting[place]
                num_items += 1
            else:
                waiting[kept] = waiting[place]
                kept += 1
        for place in range(last, num_waiting):
            waiting[kept] = waiting[place]
            kept += 1
        num_waiting = kept
        ends[num_packs] = num_items
        num_packs += 1
    return items[:num_items].copy(), ends[:num_packs].copy(), waiting[:num_waiting].copy()


@compiled
def _choose(
    waiting: Any, capacity: int, blind: int, limit: int, chosen: Any, tried: Any, steps: Any
) -> Any:
    # Marks the chosen places; returns one more than the last place that was looked at.
    room = capacity - waiting[0]
    first = 1
    while first < len(waiting) and room - waiting[first] >= blind:
        room -= waiting[first]
        first += 1
    last, left, found = _search(waiting, first, room, chosen, tried, steps)
    if left > 0 and first > 1:
        chosen[:last] = False
        first = 1
        last, left, found = _search(waiting, 1, capacity - waiting[0], chosen, tried, steps)
    if first + found > limit:
        chosen[:last] = False
        return _largest_first(waiting, capacity, limit, chosen)
    chosen[:first] = True
    return max(last, first)


@compiled
def _search(waiting: Any, first: int, room: int, chosen: Any, tried: Any, steps: Any) -> Any:
    # Row k of `steps` (each `num_words` words and a word of zero) is what k samples can leave free.
    num_words = (room >> 6) + 1
    width = num_words + 1
    steps[:width] = 0
    steps[room >> 6] = ONE << np.uint64(room & 63)
    row = 0
    done = 0
    place = first
    while place < len(waiting) and steps[row] & ONE == 0:
        if waiting[place] <= room:
            _add(steps, row, waiting[place], num_words)
            tried[done] = place
            done += 1
            row += width
        place += 1
    free = 0
    while steps[row + (free >> 6)] >> np.uint64(free & 63) & ONE == 0:
        free += 1
    left, found = free, 0
    while free < room:
        done -= 1
        row -= width
        if steps[row + (free >> 6)] >> np.uint64(free & 63) & ONE == 0:
            chosen[tried[done]] = True
            free += waiting[tried[done]]
            found += 1
    return place, left, found


@inlined
def _add(steps: Any, row: int, length: int, num_words: int) -> None:
    # reach |= reach >> length, word by word. Unsigned places spare the check for negative ones,
    # without which the loop is not vectorised; shifting twice keeps a shift of 64 defined.
    low = np.uint64(length & 63)
    high = np.uint64(63) - low
    before = np.uint64(row)
    after = before + np.uint64(num_words + 1)
    shifted = before + np.uint64(length >> 6)
    moved = num_words - (length >> 6)
    for word in range(moved):
        at = np.uint64(word)
        carried = steps[shifted + at + ONE] << ONE << high
        steps[after + at] = steps[before + at] | steps[shifted + at] >> low | carried
    for word in range(moved, num_words):
        at = np.uint64(word)
        steps[after + at] = steps[before + at]
    steps[after + np.uint64(num_words)] = 0


@compiled
def _largest_first(waiting: Any, capacity: int, limit: int, chosen: Any) -> Any:
    room = capacity - waiting[0]
    chosen[0] = True
    for _ in range(limit - 1):
        best = -1
        for place in range(1, len(waiting)):
            fits = not chosen[place] and waiting[place] <= room
            if fits and (best < 0 or waiting[place] > waiting[best]):
                best = place
        if best < 0:
            break
        chosen[best] = True
        room -= waiting[best]
    return len(waiting)
