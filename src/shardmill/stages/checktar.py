"""Compares the index of a tar with the tar itself: walks the headers and looks for differences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardmill.errors import FormatError
from shardmill.io.index import ShardIndex, open_index
from shardmill.io.sampleshard import open_foreign
from shardmill.model.manifest import ShardEntry

PLACES = ("start", "first", "offset", "size")


def check_tar(out_dir: Path, shard: ShardEntry) -> Iterator[tuple[str, str]]:
    """Yield (path, what is wrong) for a shard that has a tar and its index."""
    if not {"tar", "idx"} <= shard.files.keys():
        return
    tar_path, index_path = shard.files["tar"].path, shard.files["idx"].path
    try:
        index = open_index(out_dir / index_path)
        walked, grouped = open_foreign(str(out_dir / tar_path))
        with walked:
            yield from ((tar_path, str(error)) for _, error in grouped.bad)
            yield from ((index_path, what) for what in _differences(index, walked.index, shard))
    except FormatError as error:
        yield tar_path if error.path.endswith(tar_path) else index_path, str(error)


def _differences(index: ShardIndex, walked: ShardIndex, shard: ShardEntry) -> Iterator[str]:
    if not len(index) == len(walked) == shard.num_samples:
        yield (
            f"lists {len(index)} samples, the tar holds {len(walked)}, the receipt says "
            f"{shard.num_samples}"
        )
        return
    if list(index.keys) != list(walked.keys):
        yield "lists other keys than the tar"
    for name in PLACES:
        if not np.array_equal(index.arrays[name], walked.arrays[name]):
            yield f"array {name!r} does not fit the tar"
