"""Which folders beside one were made from it: their specs name it as their input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardmill.errors import FormatError
from shardmill.io.receipts import Ledger


def find_downstream(folder: Path) -> list[Path]:
    """Return the neighbours of a folder that were made from it, or from what was made from it.

    Only folders beside it are looked at; those elsewhere nobody knows of. What was made by leaving
    samples out, and what was made from that, does not count.
    """
    wanted, found = {folder.resolve()}, []
    neighbours = {path: _inputs_of(path) for path in _stage_folders(folder.resolve().parent)}
    # What was made from something that was made from it holds it too.
    while more := [p for p, used in neighbours.items() if p not in wanted and used & wanted]:
        wanted |= set(more)
        found += more
    return sorted(found)


def _stage_folders(parent: Path) -> Iterator[Path]:
    return (path for path in parent.iterdir() if (path / "stage.json").is_file())


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
            if isinstance(value, str) and (name.endswith("_dir") or name in ("folder", "dir")):
                yield Path(value).resolve()
            yield from _folders_in(value)
    elif isinstance(plain, list):
        for value in plain:
            yield from _folders_in(value)
