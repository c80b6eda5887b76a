"""Writes the ranges of one unit into shared files, and a small file with their checksums.

`UNIT.ranges` is JSON: [{"file": NAME, "offset": BYTE, "num_bytes": N, "checksum": XXH3}, ...]. The
receipt lists this file with its own checksum, as any file of a shard; `check` reads both.

`files.json` is the receipt of what belongs to no unit: the files that `finish` writes, and of
shared files the bytes that no unit wrote, such as a header. It is a list of {"path", "num_bytes",
"checksum"}; the checksum is that of all bytes outside of the ranges.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.model.manifest import FileEntry, ShardEntry
from shardmill.model.stage import Draft, Tally
from shardmill.shards.ledger import FOLDERS, TASK_FOLDERS
from shardmill.storage.files import write_file
from shardmill.storage.text import dump_page, parse_page, read_json

ROLE = "ranges"
REST_NAME = "files.json"
RECORDS = ("stage.json", "units.jsonl", "inputs.json", "manifest.json", REST_NAME)
CHUNK_BYTES = 1 << 20
MAX_OFFSET = 1 << 62
IN_PLACE = "bytes in place"


@dataclass(frozen=True, slots=True)
class Range:
    """Some bytes of a shared file."""

    file: str
    offset: int
    num_bytes: int
    checksum: str


@dataclass(slots=True)
class _Run:
    """A range that grows at its end."""

    file: str
    offset: int
    end: int
    state: Any = field(default_factory=xxhash.xxh3_64)


class RangeWriter:
    """Writes in place; use it as a context manager, and call `finish` inside."""

    def __init__(self, draft: Draft, unit_name: str) -> None:
        self._draft, self._unit = draft, unit_name
        self._files: dict[str, int] = {}
        self._runs: list[_Run] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)

    def write(self, file: str, offset: int, values: NDArray[Any]) -> None:
        """Write an array to its place; what follows what was written before is one range."""
        if not values.size:
            return
        content = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        # A unit writes few ranges, one a file or array, each in order: its batches continue them,
        # and the checksum of a range goes on without reading anything back.
        run = next((r for r in self._runs if r.file == file and r.end == offset), None)
        if run is None:
            run = _Run(file, offset, offset)
            self._runs.append(run)
        run.state.update(content)
        run.end += len(content)
        descriptor = self._descriptor(file)
        while content:  # one call writes at most 2 GiB
            num_written = os.pwrite(descriptor, content, offset)
            content, offset = content[num_written:], offset + num_written

    def finish(self, tally: Tally, *, num_samples: int) -> None:
        """Say that all ranges of the unit are written, and count their bytes."""
        ranges = [
            Range(r.file, r.offset, r.end - r.offset, r.state.hexdigest()) for r in self._runs
        ]
        plain = [asdict(part) for part in ranges]
        self._draft.file(self._unit, ROLE).write_bytes(dump_page(plain))
        self._draft.finish(self._unit, num_samples=num_samples)
        tally.count(IN_PLACE, sum(part.num_bytes for part in ranges))

    def _descriptor(self, file: str) -> int:
        # Never created here: a file that is missing must be made again for all units, not for one.
        if file not in self._files:
            self._files[file] = os.open(self._draft.shared_file(file), os.O_WRONLY)
        return self._files[file]


def read_ranges(path: Path) -> list[Range]:
    """Return the ranges that a unit wrote."""
    try:
        return [
            Range(_inside(p["file"]), _count(p["offset"]), _count(p["num_bytes"]), p["checksum"])
            for p in read_json(path)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"is not a list of ranges: {error}", path=path) from error


def _inside(name: str) -> str:
    """Return the path of a file that lies in its folder; whoever wrote it could name any."""
    if not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{name!r:.100} is no file of this folder")
    return name


def _count(value: int) -> int:
    if not 0 <= value <= MAX_OFFSET:
        raise ValueError(f"{value!r:.40} is no place in a file")
    return int(value)


def rest_names(out_dir: Path) -> Iterator[str]:
    """Yield the paths of all files of a folder that are no shards, no records and no notes."""
    ours = {*FOLDERS, *TASK_FOLDERS, *RECORDS}
    folders = [out_dir]
    while folders:
        folder = folders.pop()
        for path in sorted(folder.iterdir()):
            name = str(path)[len(str(out_dir)) :].strip("/")
            if name in ours:
                continue
            if path.is_dir() and not path.is_symlink():
                folders.append(path)
            else:
                yield name


def write_rest(out_dir: Path, shards: Iterable[ShardEntry]) -> None:
    """Write files.json for a folder with these shards, if any file belongs to none of them."""
    ranges = ranges_by_file(out_dir, shards)
    entries = [
        FileEntry(name, (out_dir / name).stat().st_size, checksum_outside(out_dir / name, parts))
        for name in rest_names(out_dir)
        for parts in [ranges.get(name, [])]
    ]
    if entries:
        write_file(out_dir / REST_NAME, dump_page([asdict(entry) for entry in entries]))


def read_rest(out_dir: Path) -> list[FileEntry]:
    """Return what files.json lists; `FileNotFoundError` if there is none."""
    path = out_dir / REST_NAME
    content = path.read_bytes()
    try:
        entries = [
            FileEntry(_inside(p["path"]), _count(p["num_bytes"]), str(p["checksum"]))
            for p in parse_page(content, path)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"is not a list of files: {error}", path=path) from error
    if dump_page([asdict(entry) for entry in entries]) != content:
        raise FormatError("is not as it was written", path=path)
    return entries


def ranges_by_file(out_dir: Path, shards: Iterable[ShardEntry]) -> dict[str, list[Range]]:
    """Return the ranges that units wrote into each shared file."""
    found: dict[str, list[Range]] = {}
    for shard in shards:
        if ROLE in shard.files:
            for part in read_ranges(out_dir / shard.files[ROLE].path):
                found.setdefault(part.file, []).append(part)
    return found


def checksum_outside(path: Path, ranges: Sequence[Range]) -> str:
    """Return the checksum of the bytes of a file that are in none of these ranges."""
    state, at, end = xxhash.xxh3_64(), 0, path.stat().st_size
    bounds = sorted((part.offset, part.offset + part.num_bytes) for part in ranges)
    with path.open("rb", buffering=0) as file:
        for start, stop in [*bounds, (end, end)]:
            file.seek(at)
            while at < start and (chunk := file.read(min(CHUNK_BYTES, start - at))):
                state.update(chunk)
                at += len(chunk)
            at = max(at, stop)
    return str(state.hexdigest())
