"""The items under the root: stage folders, plans and length tables, and how they are linked.

An item has an id, its path from the root ("." is the root itself). Requests name ids, which are
looked up here: no path ever comes from a request.

A stage stores the paths that it reads as they were typed, often relative to a working folder that
nobody remembers. A path is tried from the item's own place upwards, and counts only if it leads to
an item.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path, PurePath
from typing import Any, Literal

from shardmill.errors import FormatError, ShardmillError
from shardmill.shards.arrays import MAGIC
from shardmill.shards.plans import open_lengths, open_plan
from shardmill.storage.objects import list_here
from shardmill.storage.path import UrlPath, is_remote
from shardmill.view.access import AccessPolicy

Kind = Literal["stage", "plan", "lengths"]
MAX_DEPTH = 3
MAX_ENTRIES = 2000
RESCAN_S, RESCAN_STORE_S = 2.0, 30.0


class NotHere(ShardmillError):
    """The request names something that the folder does not hold."""


@dataclass(frozen=True, slots=True)
class Item:
    """A stage folder, a plan or a length table."""

    id: str
    path: Path
    kind: Kind

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.path.name if self.id == "." else self.id


class ItemList:
    """The items under a root; the root is scanned again now and then, since stages may start."""

    def __init__(self, root: Path, policy: AccessPolicy) -> None:
        self.root = root if isinstance(root, UrlPath) else root.resolve()
        self.policy = policy
        self._items: dict[str, Item] = {}
        self._kinds: dict[Path, tuple[int, Kind | None]] = {}
        self._scanned_s = float("-inf")

    def items(self) -> dict[str, Item]:
        """Return all items by id, in the order of their names."""
        age_s = RESCAN_STORE_S if isinstance(self.root, UrlPath) else RESCAN_S
        if time.monotonic() - self._scanned_s > age_s:
            found = sorted(
                (path.relative_to(self.root).as_posix(), path, kind)
                for path, kind in self._scan(self.root, 0)
            )
            self._items = {id: Item(id, path, kind) for id, path, kind in found}
            self._scanned_s = time.monotonic()
        return self._items

    def _scan(self, folder: Path, depth: int) -> Iterator[tuple[Path, Kind]]:
        if (folder / "stage.json").is_file() or (folder / "manifest.json").is_file():
            yield folder, "stage"
            return
        for path, is_folder in _entries(folder):
            if path.name.startswith(".") or not self.policy.allows(path):
                continue
            if is_folder and depth < MAX_DEPTH:
                yield from self._scan(path, depth + 1)
            elif not is_folder and (kind := self._kind_of_file(path)) is not None:
                yield path, kind

    def _kind_of_file(self, path: Path) -> Kind | None:
        try:
            mtime = path.stat().st_mtime_ns
            known = self._kinds.get(path)
            if known is None or known[0] != mtime:
                known = self._kinds[path] = mtime, _detect_kind(path)
            return known[1]
        except OSError:
            return None


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


def _detect_kind(path: Path) -> Kind | None:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return None
    kinds: tuple[tuple[Kind, Any], ...] = (("plan", open_plan), ("lengths", open_lengths))
    for kind, opens in kinds:
        try:
            opens(path)
            return kind
        except FormatError:
            continue
    return None


def find_item(typed: str, near: Path, items: Mapping[str, Item]) -> Item | None:
    """Return the item that a path which the stage in `near` reads means, or None.

    An absolute path that is gone, because the pipeline was moved or uploaded, is looked for by its
    last parts.
    """
    by_path = {str(item.path): item for item in items.values()}
    if is_remote(typed) or isinstance(near, UrlPath):
        tried = [typed.rstrip("/"), *(f"{base}/{typed}" for base in near.parents)]
    else:
        tried = [normpath(base / typed) for base in (Path("/"), *near.parents)]
    whole = PurePath(typed)
    if whole.is_absolute() and (isinstance(near, UrlPath) or not Path(typed).exists()):
        tails = ["/".join(whole.parts[start:]) for start in range(1, len(whole.parts))]
        tried += [f"{base}/{tail}" for tail in tails for base in near.parents]
    return next((by_path[path] for path in tried if path in by_path), None)


def inputs_of(
    reads: Mapping[str, Sequence[str]], near: Path, items: Mapping[str, Item]
) -> list[Item]:
    """Return the items among the places that the stage in `near` reads, each once."""
    found = (find_item(path, near, items) for paths in reads.values() for path in paths)
    return list({item.id: item for item in found if item and item.path != near}.values())
