"""The loops of planning compiled by C: `loops` says what each takes and returns.

Only `loops.load_loops` imports this module, and only where `_loops` was built.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.packing.loops import Filled, Loops, Patterns

_loops: Any = import_module("shardmill.packing._loops")


def _as(array: Any, dtype: Any) -> NDArray[Any]:
    return np.ascontiguousarray(array, dtype)


def best_fit(histogram: NDArray[np.int64], capacity: int, max_documents: int) -> Patterns:
    found = _loops.best_fit(_as(histogram, np.int64), capacity, min(max_documents, capacity))
    types = (np.int32, np.int32, np.int64, np.int64)
    return Patterns(*(np.frombuffer(made, dtype) for made, dtype in zip(found, types)))


def fill_window(
    stream: NDArray[np.int32],
    capacity: int,
    window: int,
    blind: int,
    max_documents: int,
    flush: bool,
) -> Filled:
    items, waiting = np.empty(len(stream), np.int32), np.empty(window, np.int32)
    ends = np.empty(len(stream), np.int64)
    limit = min(max_documents, window)
    num_items, num_packs, num_waiting = _loops.fill_window(
        _as(stream, np.int32), capacity, window, blind, limit, flush, items, ends, waiting
    )
    return Filled(items[:num_items], ends[:num_packs], waiting[:num_waiting])


def sort_rows(
    lengths: NDArray[np.int32],
    blocks: NDArray[np.int64],
    block_rows: int,
    histogram: NDArray[np.int64],
) -> NDArray[np.uint32]:
    counted = _as(histogram, np.int64)
    rows = np.empty(int(counted.sum()), np.uint32)
    _loops.sort_rows(_as(lengths, np.int32), _as(blocks, np.int64), block_rows, counted, rows)
    return rows


def deal_rows(
    patterns: Patterns, rows: NDArray[np.uint32], histogram: NDArray[np.int64]
) -> NDArray[np.uint32]:
    members = np.empty(len(rows), np.uint32)
    _loops.deal_rows(
        _as(patterns.run_length, np.int32),
        _as(patterns.run_count, np.int32),
        _as(patterns.run_starts, np.int64),
        _as(patterns.repeats, np.int64),
        _as(rows, np.uint32),
        _as(histogram, np.int64),
        members,
    )
    return members


def halve(
    by_visual: NDArray[np.uint32],
    by_cost: NDArray[np.uint32],
    on_cost: NDArray[np.bool_],
    middle: int,
    is_left: NDArray[np.bool_],
) -> None:
    _loops.halve(by_visual, by_cost, on_cost, by_visual.shape[1], middle, is_left)


def worst_fit(lengths: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    pack_of = np.empty(len(lengths), np.int64)
    _loops.worst_fit(_as(lengths, np.int64), capacity, pack_of)
    return pack_of


COMPILED = Loops(best_fit, fill_window, sort_rows, deal_rows, halve, worst_fit)
