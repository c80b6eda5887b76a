"""The loops of planning, in plain Python and numpy, and the choice between these and compiled ones.

`load_loops` is the one place that chooses. `compiled` has the same functions in C; both give the
same plan to the last row, so the choice is about time only. What each function takes and returns is
said here.

    best_fit      best-fit decreasing over the histogram of lengths
    fill_window   packs filled to the last token from a window of samples in arrival order
    sort_rows     rows by length, in a shuffled order of blocks
    deal_rows     rows dealt to the places of the patterns
    halve         one level of the splitting in `balance.Halving`
    worst_fit     each sample into the least filled pack, as NeMo's knapsack does

Fitting works on lengths, never on samples: ten thousand packs of the lengths 4000, 4000, 192 are
one pattern, stored as runs of equal lengths (4000, 2), (192, 1) and how often it is made. Runs of
pattern p are those from `run_starts[p]` to `run_starts[p + 1]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappush, heapreplace
from importlib import import_module
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

LoopsName = Literal["auto", "compiled", "plain"]
NO_LIMIT = 2**31 - 1
CHUNK = 1 << 22  # rows that `deal_rows` places at a time, some 100 MB of indices

Lengths: TypeAlias = NDArray[np.int32]
Histogram: TypeAlias = NDArray[np.int64]
Packs: TypeAlias = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Patterns:
    """Pack patterns in CSR form, each made `repeats` times."""

    run_length: NDArray[np.int32]
    run_count: NDArray[np.int32]
    run_starts: NDArray[np.int64]
    repeats: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.repeats)

    @property
    def num_packs(self) -> int:
        """How many packs all patterns make."""
        return int(self.repeats.sum())

    def documents(self) -> NDArray[np.int64]:
        """The number of documents of each pattern."""
        return self.sum_runs(self.run_count.astype(np.int64))

    def tokens(self) -> NDArray[np.int64]:
        """The tokens of each pattern, in the units of its lengths."""
        return self.sum_runs(self.run_length.astype(np.int64) * self.run_count)

    def sum_runs(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over the runs of each pattern."""
        total = np.concatenate([[0], np.cumsum(values)])
        return np.asarray(total[self.run_starts[1:]] - total[self.run_starts[:-1]])

    @classmethod
    def of(cls, packs: Iterable[Sequence[int]]) -> Patterns:
        """Return the patterns of packs that are lists of lengths; equal packs become one."""
        repeats = Counter(tuple(sorted(pack, reverse=True)) for pack in packs)
        ends = np.cumsum([len(pack) for pack in repeats], dtype=np.int64)
        lengths = [length for pack in repeats for length in pack]
        patterns = single_runs(np.array(lengths, np.int32), ends, 1)
        return replace(patterns, repeats=np.array(list(repeats.values()), np.int64))


def single_runs(items: NDArray[np.int32], ends: NDArray[np.int64], repeats: int) -> Patterns:
    """Return packs given as items and pack ends as patterns, each made `repeats` times."""
    return Patterns(
        items,
        np.ones(len(items), np.int32),
        np.concatenate([np.zeros(1, np.int64), ends]),
        np.full(len(ends), repeats, np.int64),
    )


def join_patterns(parts: Sequence[Patterns]) -> Patterns:
    """Return the patterns of all parts after each other."""
    first_run = np.cumsum([0] + [len(part.run_length) for part in parts])
    return Patterns(
        np.concatenate([part.run_length for part in parts]),
        np.concatenate([part.run_count for part in parts]),
        np.concatenate(
            [np.zeros(1, np.int64)]
            + [part.run_starts[1:] + first for part, first in zip(parts, first_run)]
        ),
        np.concatenate([part.repeats for part in parts]),
    )


class Filled(NamedTuple):
    """Packs as their lengths one after another and the end of each, and what is still waiting."""

    items: NDArray[np.int32]
    ends: NDArray[np.int64]
    waiting: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Loops:
    """The loops of planning."""

    best_fit: Callable[[Histogram, int, int], Patterns]
    fill_window: Callable[[Lengths, int, int, int, int, bool], Filled]
    sort_rows: Callable[[Lengths, NDArray[np.int64], int, Histogram], NDArray[np.uint32]]
    deal_rows: Callable[[Patterns, NDArray[np.uint32], Histogram], NDArray[np.uint32]]
    halve: Callable[[Packs, Packs, NDArray[np.bool_], int, NDArray[np.bool_]], None]
    worst_fit: Callable[[NDArray[np.int64], int], NDArray[np.int64]]


@dataclass(slots=True)
class _Class:
    """Equal packs: made from those of `parent` by putting `quantity` samples of `length` in."""

    parent: int
    length: int
    quantity: int
    documents: int
    num_packs: int


def best_fit(histogram: NDArray[np.int64], capacity: int, max_documents: int) -> Patterns:
    """Return the patterns that best-fit decreasing makes of the lengths counted in `histogram`.

    Each length goes where the least room remains after it. Packs with equal room and contents are
    one class, so a step places thousands of samples at once, and the time depends on the number of
    distinct lengths, not of samples.
    """
    classes: list[_Class] = []
    by_room: dict[int, list[int]] = {}
    # Bit r is set when some open pack has r tokens free. With packs of 3 and 6 free it is
    # 0b1001000; a sample of 4 looks at 0b1001000 >> 4 = 0b100, lowest bit 2, so 6 free.
    rooms = 0
    for length in np.flatnonzero(histogram)[::-1].tolist():
        count = int(histogram[length])
        while count:
            parent, room, documents, available = -1, capacity, 0, count
            if above := rooms >> length:
                room = length + (above & -above).bit_length() - 1
                parent = by_room[room][-1]
                documents, available = classes[parent].documents, classes[parent].num_packs
            # Each pack takes as many as fit; a last pack takes what is left of the count.
            quantity = min(room // length, max_documents - documents, count)
            num_packs = min(available, count // quantity)
            count -= quantity * num_packs
            if parent >= 0:
                classes[parent].num_packs -= num_packs
                if classes[parent].num_packs == 0:
                    by_room[room].pop()
                    if not by_room[room]:
                        rooms ^= 1 << room
            classes.append(_Class(parent, length, quantity, documents + quantity, num_packs))
            room -= length * quantity
            if room and documents + quantity < max_documents:
                by_room.setdefault(room, []).append(len(classes) - 1)
                rooms |= 1 << room
    return _patterns(classes)


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


def fill_window(
    stream: NDArray[np.int32],
    capacity: int,
    window: int,
    blind: int,
    max_documents: int,
    flush: bool,
) -> Filled:
    """Return the packs of a stream; without `flush` it stops when the window runs short.

    The oldest sample of the window starts a pack. Sorting by length would spend the small, flexible
    lengths first and leave a band that fits nothing; arrival order keeps the mix of lengths the
    same to the end.
    """
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
    # Places from `first` on that leave the least room, the oldest where there is a choice. Bit r of
    # `reach` is set when some choice of samples leaves r tokens free: adding one of length l is
    # `reach |= reach >> l`, and the pack is full when bit 0 is set.
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


def sort_rows(
    lengths: NDArray[np.int32],
    blocks: NDArray[np.int64],
    block_rows: int,
    histogram: NDArray[np.int64],
) -> NDArray[np.uint32]:
    """Return the rows by rising length, equal lengths in block order; length 0 is left out."""
    rows = (blocks[:, None] * block_rows + np.arange(block_rows)).reshape(-1)
    rows = rows[rows < len(lengths)].astype(np.uint32)
    arriving = lengths[rows]
    if len(histogram) <= 1 << 16:
        # numpy sorts 16-bit integers by counting, in linear time.
        arriving = arriving.astype(np.uint16)
    order = np.argsort(arriving, kind="stable")
    return rows[order[len(lengths) - int(histogram.sum()) :]]


def deal_rows(
    patterns: Patterns, rows: NDArray[np.uint32], histogram: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Return the members of all packs: pattern by pattern, and each pattern's packs in turn.

    `rows` are sorted by length. A pattern of the lengths 3, 1, 1 that is made twice takes rows a, b
    of length 3 and c, d, e, f of length 1 as a c d, b e f.
    """
    members = np.empty(len(rows), np.uint32)
    documents = patterns.documents()
    runs_of = np.diff(patterns.run_starts)
    pattern = np.repeat(np.arange(len(patterns)), runs_of)
    first_member = np.cumsum(documents * patterns.repeats) - documents * patterns.repeats
    counts = patterns.run_count.astype(np.int64)
    place = np.cumsum(counts) - counts
    base = first_member[pattern] + place - place[patterns.run_starts[:-1]][pattern]
    stride = documents[pattern]
    num_rows = counts * patterns.repeats[pattern]
    # The runs of one length, in pattern order, share out that length's rows from first to last.
    by_length = np.argsort(patterns.run_length, kind="stable")
    _deal_runs(members, rows, *(a[by_length] for a in (base, stride, counts, num_rows)))
    return members


def _deal_runs(
    members: NDArray[np.uint32],
    rows: NDArray[np.uint32],
    base: NDArray[np.int64],
    stride: NDArray[np.int64],
    counts: NDArray[np.int64],
    num_rows: NDArray[np.int64],
) -> None:
    ends = np.cumsum(num_rows)
    done = run = 0
    while run < len(ends):
        # Some runs at a time, so that memory stays bounded.
        stop = max(run + 1, int(np.searchsorted(ends, done + CHUNK, side="right")))
        sizes = num_rows[run:stop]
        of = np.repeat(np.arange(run, stop), sizes)
        nth = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        pack, place = np.divmod(nth, counts[of])
        end = int(ends[stop - 1])
        members[base[of] + pack * stride[of] + place] = rows[done:end]
        done, run = end, stop


def halve(
    by_visual: Packs,
    by_cost: Packs,
    on_cost: NDArray[np.bool_],
    middle: int,
    is_left: NDArray[np.bool_],
) -> None:
    """Move the `middle` cheapest packs of each row to its left, keeping both sides sorted.

    Both matrices hold the same packs in each row. `on_cost` says for each row which cost
    decides; `is_left` is working space for one flag a pack, all False before and after.
    """
    left = np.where(on_cost[:, None], by_cost[:, :middle], by_visual[:, :middle])
    is_left[left] = True
    for run in (by_visual, by_cost):
        # Every row has `middle` packs on the left, so that both sides are matrices again.
        mask = is_left[run]
        right = run[~mask].reshape(len(run), -1)
        run[:, :middle] = run[mask].reshape(-1, middle)
        run[:, middle:] = right
    is_left[left] = False


def worst_fit(lengths: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Return the pack of each sample, in order: the least filled, or a new one if it is too full.

    Of equally filled packs the oldest is taken. A sample longer than a pack gets one of its own.
    """
    packs: list[tuple[int, int]] = []
    pack_of = []
    for length in lengths.tolist():
        if packs and packs[0][0] + length <= capacity:
            fill, pack = packs[0]
            heapreplace(packs, (fill + length, pack))
        else:
            pack = len(packs)
            heappush(packs, (length, pack))
        pack_of.append(pack)
    return np.array(pack_of, np.int64)


PLAIN = Loops(best_fit, fill_window, sort_rows, deal_rows, halve, worst_fit)


@cache
def load_loops(name: LoopsName = "auto") -> Loops:
    """Return the loops of this name; "auto" is the compiled ones where they were built."""
    if name == "plain":
        return PLAIN
    try:
        found: Loops = import_module("shardmill.packing.compiled").COMPILED
    except ImportError:
        if name == "compiled":
            raise
        return PLAIN
    return found
