"""What lies below a folder that holds several: stage folders, plans and length tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

from shardmill.shards.arrays import read_format
from shardmill.storage.objects import list_here
from shardmill.storage.path import UrlPath

Kind: TypeAlias = Literal["stage", "plan", "lengths"]
SCAN_DEPTH = 3
MAX_ENTRIES = 2000  # of one folder: one with a million raw files must not take minutes


def is_stage(folder: Path) -> bool:
    """Say whether a folder is one that a stage makes."""
    return (folder / "stage.json").is_file() or (folder / "manifest.json").is_file()


def kind_of_file(path: Path) -> Kind | None:
    """Return what a file of ours holds by its header, None for all other files."""
    try:
        found = read_format(path)
    except OSError:
        return None
    return cast(Kind, found) if found in get_args(Kind) else None


def find_data(
    folder: Path,
    *,
    allows: Callable[[Path], bool] = lambda _: True,
    kind_of: Callable[[Path], Kind | None] = kind_of_file,
    depth: int = SCAN_DEPTH,
) -> Iterator[tuple[Path, Kind]]:
    """Yield the data of ours in and below a folder, in the order of names; hidden ones are not."""
    if is_stage(folder):
        yield folder, "stage"
        return
    for path, is_folder in _entries(folder):
        if path.name.startswith(".") or not allows(path):
            continue
        if is_folder and depth:
            yield from find_data(path, allows=allows, kind_of=kind_of, depth=depth - 1)
        elif not is_folder and (kind := kind_of(path)) is not None:
            yield path, kind


def _entries(folder: Path) -> list[tuple[Path, bool]]:
    """Return (path, whether it is a folder) of what lies in a folder; nothing if unreadable."""
    if isinstance(folder, UrlPath):
        folders, files = list_here(str(folder))
        found: list[tuple[Path, bool]] = [(folder / name, True) for name in folders]
        found += [(folder / info.path, False) for info in files]
        return sorted(found)[:MAX_ENTRIES]
    try:
        with os.scandir(folder) as entries:
            some = [entry for _, entry in zip(range(MAX_ENTRIES), entries)]
            return sorted((Path(entry.path), entry.is_dir()) for entry in some)
    except OSError:
        return []
