"""Which folders near one were made from it: their specs name it as their input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from shardmill.errors import FormatError
from shardmill.io.receipts import Ledger

LEVELS_BELOW = 2
MAX_FOLDERS = 10_000


@dataclass(frozen=True, slots=True)
class Downstream:
    """What was made from a folder, where it was looked for, and whether all of that was seen."""

    folders: tuple[Path, ...]
    looked_in: Path
    saw_all: bool


def find_downstream(folder: Path) -> Downstream:
    """Find the folders that were made from one, or from what was made from it.

    Those beside it are looked at and those some levels below them; elsewhere nobody knows of them.
    What was made by leaving samples out, and what was made from that, does not count.
    """
    wanted, found = {folder.resolve()}, []
    parent = folder.resolve().parent
    seen = list(islice(_folders_below(parent, LEVELS_BELOW), MAX_FOLDERS + 1))
    near = [path for path in seen[:MAX_FOLDERS] if _is_stage(path)]
    neighbours = {path: _inputs_of(path) for path in near}
    # What was made from something that was made from it holds it too.
    while more := [p for p, used in neighbours.items() if p not in wanted and used & wanted]:
        wanted |= set(more)
        found += more
    return Downstream(tuple(sorted(found)), parent, len(seen) <= MAX_FOLDERS)


def _folders_below(parent: Path, levels: int) -> Iterator[Path]:
    """Yield the folders in a folder, then those in them; a stage's own are its shards and books."""
    try:
        folders = sorted(path for path in parent.iterdir() if _may_hold_more(path))
    except OSError:  # not for us to read
        return
    yield from folders
    for path in folders if levels else ():
        if not _is_stage(path):
            yield from _folders_below(path, levels - 1)


def _may_hold_more(path: Path) -> bool:
    return not path.name.startswith(".") and path.is_dir() and not path.is_symlink()


def _is_stage(path: Path) -> bool:
    return (path / "stage.json").is_file()


def _inputs_of(folder: Path) -> set[Path]:
    try:
        record = Ledger(folder).read_stage()
    except FormatError:
        return set()
    if record is None or _removes(record.stage):
        return set()
    return set(_folders_in(record.stage))


def _removes(stage: Any) -> bool:
    return isinstance(stage, dict) and "keys_path" in stage


def _folders_in(plain: Any) -> Iterator[Path]:
    if isinstance(plain, dict):
        for name, value in plain.items():
            if isinstance(value, str) and (
                name.endswith("_dir") or name in ("folder", "dir", "samples")
            ):
                yield Path(value).resolve()
            yield from _folders_in(value)
    elif isinstance(plain, list):
        for value in plain:
            yield from _folders_in(value)
