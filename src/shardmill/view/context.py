"""The context of all answers: every item, opened when it is asked for, and the ways between them.

From a plan to its data, from a row to its sample, from a sample to its rows. Whatever took long to
compute is cached here, so that a page that asks again gets it at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.plan import LengthTable, PackPlan
from shardmill.running.status import Status, read_status
from shardmill.shards.plans import TABLE_NAME, open_lengths, open_plan
from shardmill.shards.tokens.shard import token_lengths
from shardmill.view.access import AccessPolicy
from shardmill.view.folder import Folder
from shardmill.view.items import Item, ItemList, NotHere, inputs_of

T = TypeVar("T")
MAX_CACHED = 32
MAX_TABLES = 4
MAX_DEPTH = 8
# A status that took long to read is read less often: at most a tenth of the time goes into it.
MIN_STATUS_AGE_S, STATUS_SHARE = 0.5, 10.0


class Context:
    """One for a server or a report; `decodes` says that weights may be loaded to decode codes.

    `lock` guards the lists of open things; each folder has a lock of its own for its readers.
    """

    def __init__(self, root: Path, allowed: tuple[str, ...] = (), *, decodes: bool = False) -> None:
        self.policy = AccessPolicy.below(root, allowed)
        self.decodes = decodes
        self.lock = threading.RLock()
        self._list = ItemList(root, self.policy)
        self._folders: dict[str, Folder] = {}
        self._statuses: dict[Path, tuple[Status, float, float]] = {}
        self._cache: dict[Hashable, Any] = {}
        self._tables: dict[Hashable, LengthTable] = {}

    @property
    def root(self) -> Path:
        """The folder that is shown."""
        return self._list.root

    def items(self) -> dict[str, Item]:
        """Return all items by id."""
        with self.lock:
            return self._list.items()

    def item(self, id: str) -> Item:
        """Return an item by its id, or raise `NotHere`."""
        found = self.items().get(id)
        if found is None:
            raise NotHere(f"there is no {id!r} here")
        return found

    def folder(self, id: str, *contents: str) -> Folder:
        """Return an open stage folder.

        Raises `ConfigError` if it holds none of the contents given, `Refused` if its links lead
        outside.
        """
        item = self.item(id)
        if item.kind != "stage":
            raise ConfigError(f"{id!r} is a {item.kind}, not a folder")
        with self.lock:
            folder = self._folders.setdefault(id, Folder(item.path, self.policy))
        folder.check()
        if contents and folder.content not in contents:
            raise ConfigError(f"{id!r} holds {folder.content}, not {' or '.join(contents)}")
        return folder

    def folders(self) -> Iterator[tuple[Item, Folder]]:
        """Yield the stage folders that can be read; a broken one does not hide the others."""
        for item in self.items().values():
            if item.kind == "stage":
                try:
                    folder = self.folder(item.id)
                    _ = folder.spec, folder.entries()
                except (ShardmillError, OSError):
                    continue
                yield item, folder

    def status(self, folder: Folder) -> Status | None:
        """Return the progress of a folder; None if it has no stage.json."""
        if folder.record is None:
            return None
        known, now_s = self._statuses.get(folder.path), time.monotonic()
        if known and now_s - known[1] < max(MIN_STATUS_AGE_S, STATUS_SHARE * known[2]):
            return known[0]
        with folder.lock:
            status = read_status(folder.path)
        read_s = time.monotonic()
        self._statuses[folder.path] = status, read_s, read_s - now_s
        return status

    def plan(self, id: str) -> PackPlan:
        """Return a plan, memory-mapped."""
        item = self.item(id)
        if item.kind != "plan":
            raise ConfigError(f"{id!r} is not a plan")
        stamp = item.path.stat().st_mtime_ns
        return self.cached(("plan", id, stamp), lambda: open_plan(item.path))

    def lengths(self, id: str) -> LengthTable:
        """Return the lengths of a length table, a folder of `measure` or a folder of tokens."""
        item = self.item(id)
        if item.kind == "stage" and self.folder(id, "tokens", "lengths").content == "tokens":
            manifest = self.folder(id).manifest
            stamp: object = None if manifest is None else manifest.units_digest
            return self._table((id, stamp), lambda: token_lengths(item.path))
        path = item.path / TABLE_NAME if item.kind == "stage" else item.path
        return self._table((id, path.stat().st_mtime_ns), lambda: open_lengths(path))

    def inputs(self, id: str) -> list[Item]:
        """Return the items that this one was made from."""
        item = self.item(id)
        if item.kind == "stage":
            return inputs_of(self.folder(id).reads, item.path, self.items())
        data = self.data_of_plan(id) if item.kind == "plan" else None
        return [] if data is None else [data]

    def made_from(self, id: str) -> list[tuple[Item, Folder]]:
        """Return the folders that were made from this item."""
        return [
            (item, folder)
            for item, folder in self.folders()
            if item.id != id and any(source.id == id for source in self.inputs(item.id))
        ]

    def upstream(self, id: str, content: str, depth: int = MAX_DEPTH) -> tuple[Item, Folder] | None:
        """Return the nearest folder of "samples" or "tokens" that an item was made from."""
        item = self.item(id)
        if item.kind == "stage":
            folder = self.folder(id)
            if folder.content == content:
                return item, folder
        found = (self.upstream(i.id, content, depth - 1) for i in self.inputs(id) if depth)
        return next((pair for pair in found if pair is not None), None)

    def data_of_plan(self, id: str) -> Item | None:
        """Return the length table or the tokens that a plan packs, as far as can be told cheaply.

        A table has the digest that the plan names. Tokens only have as many rows (their digest
        takes reading all lengths, which happens when they are used); a stage that reads both the
        plan and its tokens decides between several.
        """
        plan, plan_path = self.plan(id), self.item(id).path
        for item in self._tables_here():
            if self.lengths(item.id).digest == plan.lengths_digest:
                return item
        fitting = [
            item
            for item, folder in self.folders()
            if folder.content == "tokens"
            and sum(entry.num_samples for entry in folder.entries()) == plan.num_rows
        ]
        for item, folder in self.folders():
            read = inputs_of(folder.reads, item.path, self.items())
            named = [other for other in read if other in fitting]
            if named and any(other.path == plan_path for other in read):
                return named[0]
        return fitting[0] if fitting else None

    def raw_file(self, id: str, path: str) -> str:
        """Return the full name of a raw file that an origin names from its source's folder."""
        for other in [self.item(id), *self.inputs(id)]:
            for raw in self.folder(other.id).reads.get("raw", ()) if other.kind == "stage" else ():
                if raw == path or raw.endswith(f"/{path}"):
                    return raw
        return path

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made under this key, or make it; others do not wait meanwhile."""
        return self._keep(self._cache, MAX_CACHED, key, make)

    def _tables_here(self) -> Iterator[Item]:
        yield from (item for item in self.items().values() if item.kind == "lengths")
        for item, folder in self.folders():
            if folder.content == "lengths" and (item.path / TABLE_NAME).is_file():
                yield item

    def _table(self, key: Hashable, make: Callable[[], LengthTable]) -> LengthTable:
        # Tables can be large, so that fewer of them are kept than of the rest.
        return self._keep(self._tables, MAX_TABLES, key, make)

    def _keep(
        self, cache: dict[Hashable, Any], limit: int, key: Hashable, make: Callable[[], T]
    ) -> T:
        with self.lock:
            if key in cache:
                known: T = cache[key]
                return known
        made = make()
        with self.lock:
            while len(cache) >= limit:
                cache.pop(next(iter(cache)))
            cache[key] = made
        return made
