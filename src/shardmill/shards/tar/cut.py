"""A tar without some of its samples: the others keep their bytes, header for header.

Runs of neighbours are copied by the kernel, nothing is parsed; the index loses the same rows and
its offsets move up.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.model.tokenrow import spans_of
from shardmill.shards.arrays import write_arrays
from shardmill.shards.columns import pack_strings
from shardmill.shards.tar.header import END_OF_TAR
from shardmill.shards.tar.index import FORMAT, MEMBER_COLUMNS, ShardIndex, open_index

COPY_BYTES = 1 << 30


def cut_tar(
    tar_path: Path, index_path: Path, keep: NDArray[np.bool_], new_tar: Path, new_index: Path
) -> None:
    """Write the samples that are kept to a new tar and its index."""
    index = open_index(index_path)
    if tar_path.stat().st_size != index.num_bytes:
        raise FormatError(f"does not have the {index.num_bytes} bytes of its index", path=tar_path)
    num_bytes = _copy_samples(tar_path, index, keep, new_tar)
    meta = {**index.arrays.meta, "num_bytes": num_bytes}
    with new_index.open("wb") as file:
        write_arrays(file, FORMAT, _cut_arrays(index, keep), meta)


def _copy_samples(tar_path: Path, index: ShardIndex, keep: NDArray[np.bool_], new_tar: Path) -> int:
    start = index.arrays["start"].astype(np.int64)
    with tar_path.open("rb") as source, new_tar.open("wb", buffering=0) as target:
        for first, count in spans_of(keep).tolist():
            _copy(source.fileno(), int(start[first]), int(start[first + count]), target.fileno())
        target.write(END_OF_TAR)
        return target.tell()


def _copy(source: int, start: int, end: int, target: int) -> None:
    while start < end:
        copied = os.sendfile(target, source, start, min(end - start, COPY_BYTES))
        if copied == 0:
            raise OSError(f"the tar ends {end - start} bytes too early")
        start += copied


def _cut_arrays(index: ShardIndex, keep: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    arrays = index.arrays
    first, start = (arrays[name].astype(np.int64) for name in ("first", "start"))
    counts, sizes = np.diff(first), np.diff(start)
    of_member = np.repeat(keep, counts)
    new_start = np.concatenate([[0], np.cumsum(sizes[keep])])
    # How far each kept sample moves up, for each of its members.
    moved = np.repeat(start[:-1][keep] - new_start[:-1], counts[keep])
    order = arrays["hash_order"].astype(np.int64)
    cut = {
        "start": new_start.astype(np.uint64),
        "first": np.concatenate([[0], np.cumsum(counts[keep])]).astype(np.uint64),
        "offset": (arrays["offset"][of_member].astype(np.int64) - moved).astype(np.uint64),
        **pack_strings("key", [bytes(index.keys.raw(n)) for n in np.flatnonzero(keep).tolist()]),
        "hash": arrays["hash"][keep[order]],
        "hash_order": (np.cumsum(keep) - 1)[order[keep[order]]].astype(np.uint32),
    }
    return {name: cut[name] if name in cut else _cut_column(index, name, keep, of_member)
            for name in arrays}  # fmt: skip


def _cut_column(
    index: ShardIndex, name: str, keep: NDArray[np.bool_], of_member: NDArray[np.bool_]
) -> NDArray[Any]:
    column = index.arrays[name]
    if name in ("size", "ext", *MEMBER_COLUMNS):
        return column[of_member]
    is_table = name.endswith(("_bytes", "_bounds"))
    return column if is_table else column[keep]
