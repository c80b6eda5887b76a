"""Finds keys that two samples of a folder share: each shard is right, but the key is no name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardmill.io.index import ShardIndex, open_index


class RepeatedKey(NamedTuple):
    """A key, and two of the indexes that hold it."""

    key: str
    first_path: Path
    second_path: Path


def find_repeated_keys(index_paths: Sequence[Path]) -> Iterator[RepeatedKey]:
    """Yield the keys that stand in more than one place; 16 bytes a sample are held."""
    hashes = [open_index(path).arrays["hash"] for path in index_paths]
    if not hashes:
        return
    owners = np.repeat(np.arange(len(hashes)), [len(some) for some in hashes])
    joined = np.concatenate(hashes)
    order = np.argsort(joined, kind="stable")
    # Equal hashes are neighbours now; only there can two keys be equal.
    for place in np.flatnonzero(joined[order][1:] == joined[order][:-1]).tolist():
        first, second = (int(owners[order[place + i]]) for i in (0, 1))
        wanted = int(joined[order[place]])
        shared = _keys_with(open_index(index_paths[first]), wanted) & _keys_with(
            open_index(index_paths[second]), wanted
        )
        for key in sorted(shared):
            yield RepeatedKey(key, index_paths[first], index_paths[second])


def _keys_with(index: ShardIndex, wanted: int) -> set[str]:
    table, order = index.arrays["hash"], index.arrays["hash_order"]
    start, stop = (
        int(np.searchsorted(table, np.uint64(wanted), side)) for side in ("left", "right")
    )
    return {index.keys[int(order[row])] for row in range(start, stop)}
