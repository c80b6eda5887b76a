"""Compares the ranges that units wrote into shared files with what they noted about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import xxhash

from shardmill.errors import FormatError
from shardmill.formats.inplace import ROLE, Range, read_ranges
from shardmill.model.manifest import ShardEntry

CHUNK_BYTES = 1 << 20


def check_ranges(out_dir: Path, shard: ShardEntry) -> Iterator[tuple[str, str]]:
    """Yield (path, what is wrong) for a shard that lies in shared files."""
    if ROLE not in shard.files:
        return
    path = shard.files[ROLE].path
    try:
        ranges = read_ranges(out_dir / path)
    except FormatError as error:
        yield path, error.problem
        return
    for part in ranges:
        try:
            checksum = _checksum(out_dir / part.file, part)
        except OSError as error:
            yield part.file, f"cannot be read: {error.strerror}"
            continue
        if checksum != part.checksum:
            yield (
                part.file,
                f"has the checksum {checksum} in the {part.num_bytes} bytes from "
                f"{part.offset}, {path} says {part.checksum}",
            )


def _checksum(path: Path, part: Range) -> str:
    state, left = xxhash.xxh3_64(), part.num_bytes
    with path.open("rb", buffering=0) as file:
        file.seek(part.offset)
        while left and (chunk := file.read(min(CHUNK_BYTES, left))):
            state.update(chunk)
            left -= len(chunk)
    return str(state.hexdigest())
