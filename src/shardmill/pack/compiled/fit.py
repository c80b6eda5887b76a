"""Best-fit decreasing over classes of equal packs, as `pack.fit` does it, in flat arrays.

Class k was made from class `parent[k]` by putting `quantity_of[k]` samples of `length_of[k]` into
each pack. Open classes with the same room form a stack: `head[room]`, then `below[k]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardmill.pack.compiled.decorator import compiled

ONE = np.uint64(1)


@compiled
def _grown(array: Any) -> Any:
    larger = np.empty(2 * len(array), array.dtype)
    larger[: len(array)] = array
    return larger


@compiled
def _next_room(bits: Any, above: Any, length: int) -> Any:
    # `bits` holds one bit for each room, `above` one bit for each word of `bits` that is not 0.
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
    place = 0
    for step in (32, 16, 8, 4, 2, 1):
        if (word >> np.uint64(place)) & ((ONE << np.uint64(step)) - ONE) == 0:
            place += step
    return place


@compiled
def best_fit(histogram: Any, capacity: int, max_documents: int) -> Any:
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
