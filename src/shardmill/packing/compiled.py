"""The five loops of planning compiled by numba: `loops` says what each takes and returns.

Only `loops.load_loops` imports this module, and only where numba is installed. Compiled code is
cached on disk beside the source (or in NUMBA_CACHE_DIR), so the first call of a process takes a
fraction of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

from shardmill.packing.loops import Filled, Loops, Patterns

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile at the first call, and keep the machine code on disk."""
    return cast(Function, njit(cache=True)(function))


def inlined(function: Function) -> Function:
    """Compile into each caller, where its loops can be vectorised."""
    return cast(Function, njit(cache=True, inline="always")(function))


@compiled
def sort_rows(lengths: Any, blocks: Any, block_rows: int, histogram: Any) -> Any:
    # A counting sort: `place[l]` is where the next row of length l goes.
    place = np.cumsum(histogram) - histogram
    rows = np.empty(histogram.sum(), np.uint32)
    for block in blocks:
        for row in range(block * block_rows, min((block + 1) * block_rows, len(lengths))):
            length = lengths[row]
            if length > 0:
                rows[place[length]] = row
                place[length] += 1
    return rows


@compiled
def deal_rows(
    run_length: Any, run_count: Any, run_starts: Any, repeats: Any, rows: Any, histogram: Any
) -> Any:
    place = np.cumsum(histogram) - histogram
    members = np.empty(len(rows), np.uint32)
    start = 0
    for pattern in range(len(repeats)):
        documents = 0
        for run in range(run_starts[pattern], run_starts[pattern + 1]):
            documents += run_count[run]
        column = start
        for run in range(run_starts[pattern], run_starts[pattern + 1]):
            source, count = place[run_length[run]], run_count[run]
            for pack in range(repeats[pattern]):
                for nth in range(count):
                    members[column + pack * documents + nth] = rows[source]
                    source += 1
            place[run_length[run]] = source
            column += count
        start += documents * repeats[pattern]
    return members


ONE = np.uint64(1)


@compiled
def _grown(array: Any) -> Any:
    larger = np.empty(2 * len(array), array.dtype)
    larger[: len(array)] = array
    return larger


@compiled
def _next_room(bits: Any, above: Any, length: int) -> Any:
    # The smallest room of an open pack that is at least `length`, -1 if there is none. `bits` holds
    # one bit for each room, `above` one bit for each word of `bits` that is not 0: a search looks
    # at a few words, of which a capacity of 128k has 2,048.
    word = length >> 6
    rest = bits[word] >> np.uint64(length & 63)
    if rest:
        return length + _lowest(rest)
    word += 1
    if word >= len(bits):
        return -1
    group = word >> 6
    rest = above[group] >> np.uint64(word & 63)
    if rest:
        word += _lowest(rest)
    else:
        group += 1
        while group < len(above) and above[group] == 0:
            group += 1
        if group == len(above):
            return -1
        word = (group << 6) + _lowest(above[group])
    return (word << 6) + _lowest(bits[word])


@compiled
def _lowest(word: Any) -> Any:
    # The number of the lowest bit, by halving: numba offers no instruction that counts zeros.
    place = 0
    for step in (32, 16, 8, 4, 2, 1):
        if (word >> np.uint64(place)) & ((ONE << np.uint64(step)) - ONE) == 0:
            place += step
    return place


@compiled
def best_fit(histogram: Any, capacity: int, max_documents: int) -> Any:
    # Class k was made from class `parent[k]` by putting `quantity_of[k]` samples of `length_of[k]`
    # into each pack. Open classes with the same room form a stack: `head[room]`, then `below[k]`.
    size = 1024
    parent = np.empty(size, np.int64)
    length_of = np.empty(size, np.int64)
    quantity_of = np.empty(size, np.int64)
    documents_of = np.empty(size, np.int64)
    packs_of = np.empty(size, np.int64)
    below = np.empty(size, np.int64)
    num_classes = 0
    head = np.full(capacity + 1, -1, np.int64)
    bits = np.zeros((capacity >> 6) + 1, np.uint64)
    above = np.zeros((len(bits) >> 6) + 1, np.uint64)
    for length in range(capacity, 0, -1):
        count = histogram[length]
        while count > 0:
            room = _next_room(bits, above, length)
            if room < 0:
                chosen, room, documents, available = -1, capacity, 0, count
            else:
                chosen = head[room]
                documents, available = documents_of[chosen], packs_of[chosen]
            quantity = min(room // length, max_documents - documents, count)
            num_packs = min(available, count // quantity)
            count -= quantity * num_packs
            if num_classes == len(parent):
                parent, length_of = _grown(parent), _grown(length_of)
                quantity_of, documents_of = _grown(quantity_of), _grown(documents_of)
                packs_of, below = _grown(packs_of), _grown(below)
            if chosen >= 0:
                packs_of[chosen] -= num_packs
                if packs_of[chosen] == 0:
                    head[room] = below[chosen]
                    if head[room] < 0:
                        bits[room >> 6] ^= ONE << np.uint64(room & 63)
                        if bits[room >> 6] == 0:
                            above[room >> 12] ^= ONE << np.uint64(room >> 6 & 63)
            parent[num_classes] = chosen
            length_of[num_classes] = length
            quantity_of[num_classes] = quantity
            documents_of[num_classes] = documents + quantity
            packs_of[num_classes] = num_packs
            room -= length * quantity
            if room > 0 and documents + quantity < max_documents:
                below[num_classes] = head[room]
                head[room] = num_classes
                bits[room >> 6] |= ONE << np.uint64(room & 63)
                above[room >> 12] |= ONE << np.uint64(room >> 6 & 63)
            num_classes += 1
    return _chains(parent, length_of, quantity_of, packs_of, num_classes)


@compiled
def _chains(parent: Any, length_of: Any, quantity_of: Any, packs_of: Any, num: int) -> Any:
    num_patterns = num_runs = 0
    for last in range(num):
        if packs_of[last] > 0:
            num_patterns += 1
            at = last
            while at >= 0:
                num_runs += 1
                at = parent[at]
    lengths = np.empty(num_runs, np.int32)
    counts = np.empty(num_runs, np.int32)
    starts = np.zeros(num_patterns + 1, np.int64)
    repeats = np.empty(num_patterns, np.int64)
    pattern = end = 0
    for last in range(num):
        if packs_of[last] > 0:
            at = last
            while at >= 0:
                end += 1
                at = parent[at]
            place, at = end, last
            while at >= 0:
                place -= 1
                lengths[place] = length_of[at]
                counts[place] = quantity_of[at]
                at = parent[at]
            repeats[pattern] = packs_of[last]
            pattern += 1
            starts[pattern] = end
    return lengths, counts, starts, repeats


@compiled
def halve(by_visual: Any, by_cost: Any, on_cost: Any, middle: int, is_left: Any) -> None:
    rest = np.empty(by_visual.shape[1], np.uint32)
    for row in range(len(by_visual)):
        # The matrix that decides is sorted already: its left half is the cheap one.
        decided, other = by_visual[row], by_cost[row]
        if on_cost[row]:
            decided, other = other, decided
        for place in range(middle):
            is_left[decided[place]] = True
        kept = moved = 0
        for pack in other:
            if is_left[pack]:
                other[kept] = pack
                kept += 1
            else:
                rest[moved] = pack
                moved += 1
        for place in range(moved):
            other[kept + place] = rest[place]
        for place in range(middle):
            is_left[decided[place]] = False


@compiled
def fill_window(
    stream: Any, capacity: int, window: int, blind: int, max_documents: int, flush: bool
) -> Any:
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


COMPILED = Loops(
    best_fit=lambda histogram, capacity, limit: Patterns(
        *best_fit(histogram, capacity, min(limit, capacity))
    ),
    fill_window=lambda stream, capacity, window, blind, limit, flush: Filled(
        *fill_window(stream, capacity, window, blind, min(limit, window), flush)
    ),
    sort_rows=sort_rows,
    deal_rows=lambda patterns, rows, histogram: deal_rows(
        patterns.run_length,
        patterns.run_count,
        patterns.run_starts,
        patterns.repeats,
        rows,
        histogram,
    ),
    halve=halve,
)
