"""The library: every item of the shelf, opened when it is asked for, and how to get from one to
another: from a plan to its data, from a row to its sample, from a sample to its rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.lengths import LengthTable
from shardmill.model.plan import PackPlan
from shardmill.shards.lengths import open_lengths, token_lengths
from shardmill.shards.plans import open_plan
from shardmill.view.access import Fence
from shardmill.view.folder import Folder
from shardmill.view.items import Item, Shelf, inputs_of, raw_inputs

TABLE_NAME = "lengths.bin"
MAX_TABLES = 4


class Library:
    """What is open; `lock` guards the lists of open things, each folder has its own."""

    def __init__(self, root: Path, allowed: tuple[str, ...] = ()) -> None:
        self.fence = Fence.around(root, allowed)
        self.shelf = Shelf(root, self.fence)
        self.lock = threading.RLock()
        self._folders: dict[str, Folder] = {}
        self._plans: dict[str, tuple[int, PackPlan]] = {}
        self._tables: dict[str, tuple[object, LengthTable]] = {}

    def items(self) -> dict[str, Item]:
        """Return all items by id."""
        with self.lock:
            return self.shelf.items()

    def get(self, id: str) -> Item:
        """Return an item by its id."""
        with self.lock:
            return self.shelf.get(id)

    def folder(self, id: str, *contents: str) -> Folder:
        """Return an open stage folder; it must hold one of the contents, if any is given."""
        item = self.get(id)
        if item.kind != "stage":
            raise ConfigError(f"{id!r} is a {item.kind}, not a folder")
        with self.lock:
            folder = self._folders.setdefault(id, Folder(item.path, self.fence))
        folder.check()
        if contents and folder.content not in contents:
            raise ConfigError(f"{id!r} holds {folder.content}, not {' or '.join(contents)}")
        return folder

    def folders(self) -> Iterator[tuple[Item, Folder]]:
        """Yield the stage folders that can be read; a broken one must not spoil the others."""
        for item in self.items().values():
            if item.kind == "stage":
                try:
                    folder = self.folder(item.id)
                    _ = folder.spec, folder.entries()
                except (ShardmillError, OSError):
                    continue
                yield item, folder

    def plan(self, id: str) -> PackPlan:
        """Return a plan, mapped."""
        item = self.get(id)
        if item.kind != "plan":
            raise ConfigError(f"{id!r} is no plan")
        stamp = item.path.stat().st_mtime_ns
        with self.lock:
            known = self._plans.get(id)
            if known is None or known[0] != stamp:
                known = self._plans[id] = stamp, open_plan(item.path)
            return known[1]

    def inputs(self, id: str) -> list[Item]:
        """Return the items that this one was made from."""
        item = self.get(id)
        if item.kind == "stage":
            return inputs_of(self.folder(id).spec, item.path, self.items())
        if item.kind == "plan":
            data = self.data_of_plan(id)
            return [] if data is None else [data]
        return []

    def data_of_plan(self, id: str) -> Item | None:
        """Return the table or the tokens that a plan packs, as far as can be told cheaply.

        A table has the digest that the plan names. Tokens only have as many rows (their digest
        takes reading all lengths, which is done when they are used); a stage that names both the
        plan and its tokens decides between several.
        """
        plan, plan_path = self.plan(id), self.get(id).path
        for item in self._tables_here():
            if self.lengths(item.id).digest == plan.lengths_digest:
                return item
        fitting = [
            item for item, folder in self.folders() if _num_tokenized(folder) == plan.num_rows
        ]
        for item, folder in self.folders():
            read = inputs_of(folder.spec, item.path, self.items())
            if any(other.path == plan_path for other in read):
                named = [other for other in read if other in fitting]
                if named:
                    return named[0]
        return fitting[0] if fitting else None

    def lengths(self, id: str) -> LengthTable:
        """Return the length table of a table, a folder of measure or a folder of tokens."""
        item = self.get(id)
        path = item.path / TABLE_NAME if item.kind == "stage" else item.path
        if item.kind == "stage" and self.folder(id, "tokens", "lengths").content == "tokens":
            manifest = self.folder(id).manifest
            stamp = None if manifest is None else manifest.units_digest
            return self._table(id, stamp, lambda: token_lengths(item.path))
        return self._table(id, path.stat().st_mtime_ns, lambda: open_lengths(path))

    def samples_of(self, id: str) -> tuple[Item, Folder] | None:
        """Return the folder of samples that an item was made from, through others."""
        return self._upstream(id, "samples")

    def tokens_of(self, id: str) -> tuple[Item, Folder] | None:
        """Return the folder of tokens that an item was made from."""
        return self._upstream(id, "tokens")

    def raw_file(self, id: str, path: str) -> str:
        """Return the whole name of a raw file that an origin names from its source's folder."""
        for other in [self.get(id), *self.inputs(id)]:
            spec = self.folder(other.id).spec if other.kind == "stage" else {}
            for raw in raw_inputs(spec):
                if raw == path or raw.endswith(f"/{path}"):
                    return raw
        return path

    def made_from(self, id: str) -> list[tuple[Item, Folder]]:
        """Return the folders that were made from this one."""
        return [
            (item, folder)
            for item, folder in self.folders()
            if item.id != id and any(source.id == id for source in self.inputs(item.id))
        ]

    def _upstream(self, id: str, content: str, depth: int = 8) -> tuple[Item, Folder] | None:
        item = self.get(id)
        if item.kind == "stage":
            folder = self.folder(id)
            if folder.content == content:
                return item, folder
        found = (self._upstream(i.id, content, depth - 1) for i in self.inputs(id) if depth)
        return next((pair for pair in found if pair is not None), None)

    def _tables_here(self) -> Iterator[Item]:
        for item in self.items().values():
            if item.kind == "lengths":
                yield item
        for item, folder in self.folders():
            if folder.content == "lengths" and (item.path / TABLE_NAME).is_file():
                yield item

    def _table(self, id: str, stamp: object, make: Any) -> LengthTable:
        with self.lock:
            known = self._tables.get(id)
        if known is not None and known[0] == stamp:
            return known[1]
        table: LengthTable = make()  # others need not wait for it
        with self.lock:
            while len(self._tables) >= MAX_TABLES:
                self._tables.pop(next(iter(self._tables)))
            self._tables[id] = stamp, table
        return table


def _num_tokenized(folder: Folder) -> int:
    """Return the rows of a folder of tokens, -1 of any other."""
    if folder.content != "tokens":
        return -1
    return sum(entry.num_samples for entry in folder.entries())
