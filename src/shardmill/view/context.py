"""What the page shows: the items under a root, opened when asked for, and the ways between them.

An item is a stage folder, a plan or a length table. It has an id, its path from the root ("." is
the root itself). Requests name ids, which are looked up here: no path ever comes from a request.
What is left are links on disk and tars that an index names. A folder with a link that leads outside
is not opened at all, and a tar outside is not read, unless the user allowed its place.

A folder that is still being made shows what is done so far. What was read is cached until the file
it came from changes; receipts are cached by unit, so that only new ones are read again. Whatever
took long to compute is cached in the context, so that a page that asks again gets it at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from os.path import realpath
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from shardmill.errors import ConfigError, FormatError, NotFound, ShardmillError
from shardmill.model.manifest import Manifest, Receipt, ShardEntry, StageRecord, receipt_digest
from shardmill.model.plan import LengthTable, PackPlan
from shardmill.model.stage import Unit
from shardmill.model.tokenrow import sample_key
from shardmill.running.status import Status, read_status
from shardmill.shards.arrays import MAGIC
from shardmill.shards.codes import CodeShard, open_codes
from shardmill.shards.ledger import FOLDERS, Ledger
from shardmill.shards.places import Kind, find_data
from shardmill.shards.plans import TABLE_NAME, open_lengths, open_plan
from shardmill.shards.samples import SampleDataset, SampleShard, entry_index, foreign_tar
from shardmill.shards.tokens.shard import TokenDataset, lengths_digest, open_tokens, token_lengths
from shardmill.storage.path import UrlPath, is_remote

T = TypeVar("T")
Stamp: TypeAlias = tuple[int, int]
VERBS = {"tokenize-text": "tokenize", "adopt-tokens": "tokenize", "adopt-codes": "codes"}
# Each listing of a store is a request, so it is listed again less often.
RESCAN_S, RESCAN_STORE_S = 2.0, 30.0
STORE_AGE_S = 30.0
MAX_CODE_SHARDS = 64  # that stay mapped
MAX_ASKED = 64
MAX_CACHED = 32
MAX_TABLES = 4  # they can be large, so that fewer are kept than of the rest
MAX_UPSTREAM = 8  # a folder that claims to be made from itself must not be followed for ever
# A status that took long to read is read less often: at most a tenth of the time goes into it.
MIN_STATUS_AGE_S, STATUS_SHARE = 0.5, 10.0


class Refused(ShardmillError):
    """Something lies outside of what the page may read."""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The folders (resolved) and urls that may be read, with everything below them."""

    folders: tuple[Path, ...]
    urls: tuple[str, ...] = ()

    @classmethod
    def below(cls, root: Path, allowed: tuple[str, ...] = ()) -> AccessPolicy:
        """Return the policy for a root folder and the other places that the user allowed."""
        places = [str(root), *allowed]
        urls = tuple(place.rstrip("/") + "/" for place in places if is_remote(place))
        folders = tuple(Path(place).resolve() for place in places if not is_remote(place))
        return cls(folders, urls)

    def allows(self, path: Path) -> bool:
        """Whether a path may be read once all links are followed."""
        if isinstance(path, UrlPath):
            return self._allows_url(f"{path}/")
        resolved = path.resolve()
        return any(resolved.is_relative_to(folder) for folder in self.folders)

    def check_url(self, url: str) -> None:
        """Raise `Refused` unless a file or url that our data names may be read."""
        if is_remote(url):
            allowed, place = self._allows_url(url), url.rpartition("/")[0]
        else:
            path = Path(url.removeprefix("file://"))
            allowed, place = self.allows(path), str(path.parent)
        if not allowed:
            raise Refused(f"{url} is outside of the folder: start with --allow {place} to read it")

    def check_links(self, folder: Path) -> None:
        """Raise `Refused` if a stage folder holds a link that leads outside."""
        if isinstance(folder, UrlPath):  # a store has no links
            return
        for path in _links(folder):
            if not self.allows(path):
                raise Refused(
                    f"{path} is a link to {path.readlink()}, outside of the folder: start with "
                    f"--allow {path.resolve().parent} to follow it"
                )

    def _allows_url(self, url: str) -> bool:
        return ".." not in url and any(url.startswith(place) for place in self.urls)


def _links(folder: Path) -> Iterator[Path]:
    """Yield the links in a stage folder and in the folders of its ledger, one listing each."""
    for place in (folder, *(folder / name for name in FOLDERS)):
        if place != folder and place.is_symlink():
            continue  # it was yielded with its parent
        try:
            with os.scandir(place) as entries:
                yield from (Path(entry.path) for entry in entries if entry.is_symlink())
        except OSError:
            continue


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
                for path, kind in find_data(
                    self.root, allows=self.policy.allows, kind_of=self._kind_of_file
                )
            )
            self._items = {id: Item(id, path, kind) for id, path, kind in found}
            self._scanned_s = time.monotonic()
        return self._items

    def _kind_of_file(self, path: Path) -> Kind | None:
        try:
            mtime = path.stat().st_mtime_ns
            known = self._kinds.get(path)
            if known is None or known[0] != mtime:
                known = self._kinds[path] = mtime, _detect_kind(path)
            return known[1]
        except OSError:
            return None


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


def inputs_of(
    reads: Mapping[str, Sequence[str]], near: Path, items: Mapping[str, Item]
) -> list[Item]:
    """Return the items among the places that the stage in `near` reads, each once."""
    by_path = {str(item.path): item for item in items.values()}
    places = (place.rstrip("/") for some in reads.values() for place in some)
    found = (by_path.get(p) or by_path.get(p if "://" in p else realpath(p)) for p in places)
    return list({item.id: item for item in found if item and item.path != near}.values())


@dataclass(eq=False)
class Folder:
    """One stage folder. Hold `lock` while reading: the readers are not made for several threads."""

    path: Path
    policy: AccessPolicy
    lock: threading.RLock = field(default_factory=threading.RLock)
    _cache: dict[str, tuple[object, Any]] = field(default_factory=dict)
    _receipts: dict[str, tuple[Stamp, Receipt]] = field(default_factory=dict)

    @property
    def ledger(self) -> Ledger:
        """The folder as the runner sees it."""
        return Ledger(self.path)

    def check(self) -> None:
        """Raise `Refused` if a link in it leads outside; checked again when a listing changes."""
        places = [self.path, *(self.path / name for name in ("shards", "receipts", "rejects"))]
        stamp = tuple(map(_stamp, places))
        self._cached("links", stamp, lambda: self.policy.check_links(self.path))

    @property
    def record(self) -> StageRecord | None:
        """What stage.json says."""
        return self._cached("record", _stamp(self.path / "stage.json"), self.ledger.read_stage)

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of a finished folder."""
        stamp = _stamp(self.path / "manifest.json")
        return self._cached("manifest", stamp, self.ledger.read_manifest)

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of the stage; empty if the folder does not say."""
        plain = getattr(self.record or self.manifest, "stage", None)
        return plain if isinstance(plain, dict) else {}

    @property
    def reads(self) -> Mapping[str, Sequence[str]]:
        """The places that the stage reads, by role; raw inputs are "raw"."""
        record = self.record or self.manifest
        return {} if record is None else record.reads

    @property
    def verb(self) -> str:
        """The command that makes it ("ingest"); the class of a stage that is not built in."""
        name = str(self.spec.get("kind", "")).removeprefix("stage/").rpartition(":")[2]
        return VERBS.get(name, name)

    @property
    def content(self) -> str:
        """What the shards hold, as the stage says it; "other" if the folder does not say."""
        record = self.record or self.manifest
        return "other" if record is None else record.content

    def units(self) -> list[Unit]:
        """Return the planned units in order; none if the folder does not say."""
        return list(self._units_by_name().values())

    def unit(self, name: str) -> Unit:
        """Return a unit by its name, or raise `NotFound`."""
        if not self.has_unit(name):
            raise NotFound(f"there is no unit {name!r} in {self.path.name}")
        return self._units_by_name()[name]

    def has_unit(self, name: str) -> bool:
        """Whether a unit has this name; a shard that was split off has a name of its own."""
        return name in self._units_by_name()

    def receipt(self, unit: Unit) -> Receipt | None:
        """Return the valid receipt of a unit, or None; a broken or stale one counts as none."""
        stamp = _stamp(self.ledger.receipt_path(unit.name))
        if stamp is None:
            return None
        known = self._receipts.get(unit.name)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            receipt = self.ledger.read_receipt(unit.name)
        except FormatError:
            return None
        digest = self.record.digest if self.record else ""
        if receipt is None or receipt.digest != receipt_digest(digest, unit):
            return None
        self._receipts[unit.name] = stamp, receipt
        return receipt

    def entries(self) -> Sequence[ShardEntry]:
        """Return the shards in order: those of the manifest, or of the receipts so far."""
        if self.manifest is not None:
            return self.manifest.shards

        def so_far() -> tuple[ShardEntry, ...]:
            receipts = (self.receipt(unit) for unit in self.units())
            return tuple(shard for receipt in receipts if receipt for shard in receipt.shards)

        stamp = _stamp(self.path / "receipts"), _stamp(self.path / "units.jsonl")
        return self._cached("entries", stamp, so_far)

    def first_numbers(self) -> dict[str, int]:
        """Return the number of the first sample or row of each shard that is not empty, by name."""
        entries = self.entries()

        def make() -> dict[str, int]:
            full = [entry for entry in entries if entry.num_samples]
            starts = accumulate((entry.num_samples for entry in full), initial=0)
            return {entry.name: start for entry, start in zip(full, starts)}

        # The list is kept in the cache itself until it changes, so its id stands for its content.
        return self._cached("first", id(entries), make)

    def samples(self) -> SampleDataset:
        """Return the samples; hold the lock while they are read."""
        entries = self.entries()
        return self._cached("samples", id(entries), lambda: SampleDataset(self.path, entries))

    def sample_shard(self, number: int) -> SampleShard:
        """Return an open shard of samples; raises `Refused` if its tar lies where none may."""
        samples = self.samples()
        checked = self._cached("checked", id(self.entries()), set[int])
        if number not in checked:
            entry = samples.entries[number]
            if "tar" not in entry.files:
                self.policy.check_url(foreign_tar(self.path, entry.name))
            checked.add(number)
        return samples.shard(number)

    def find_sample(self, key: str, shard_name: str | None = None) -> int | None:
        """Return the number of a sample by its key, or None.

        A stage over samples writes each shard under the name of its input shard, so that usually
        the first index has it. Otherwise some are asked in turn; for more there is the search.
        """
        with self.lock:
            samples, first = self.samples(), self.first_numbers()
            places = list(range(min(MAX_ASKED, len(samples.entries))))
            if shard_name in first:
                places.insert(0, samples.locate(first[shard_name])[0])
            for place in places:
                entry = samples.entries[place]
                row = entry_index(self.path, entry).find(key)
                if row is not None:
                    return int(first[entry.name] + row)
        return None

    def tokens(self) -> TokenDataset:
        """Return the rows of tokens; hold the lock while they are read."""
        entries = self.entries()
        full = tuple(entry for entry in entries if entry.num_samples)
        return self._cached("tokens", id(entries), lambda: TokenDataset(self.path, full))

    def codes(self, number: int) -> CodeShard:
        """Return a shard of codes by its place in the list of shards."""
        shards = self._cached("codes", id(self.entries()), dict[int, CodeShard])
        if number not in shards:
            if len(shards) >= MAX_CODE_SHARDS:
                shards.clear()
            shards[number] = open_codes(self.path / self.entries()[number].files["codes"].path)
        return shards[number]

    def _units_by_name(self) -> dict[str, Unit]:
        def read() -> dict[str, Unit]:
            try:
                return {unit.name: unit for unit in self.ledger.read_units()}
            except FileNotFoundError:
                return {}

        return self._cached("units", _stamp(self.path / "units.jsonl"), read)

    def _cached(self, name: str, stamp: object, make: Callable[[], T]) -> T:
        """Return what was made under this name with this stamp, or make it."""
        with self.lock:
            known = self._cache.get(name)
            if known is None or known[0] != stamp:
                known = self._cache[name] = stamp, make()
            value: T = known[1]
            return value


def _stamp(path: Path) -> Stamp | None:
    """Return what changes when a file is replaced, or a listing changes; None if it is gone."""
    if isinstance(path, UrlPath):  # each look is a request, so things are read again now and then
        return int(time.monotonic() / STORE_AGE_S), 0
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


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
        """Return an item by its id, or raise `NotFound`."""
        found = self.items().get(id)
        if found is None:
            raise NotFound(f"there is no {id!r} here")
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

    def upstream(
        self, id: str, content: str, depth: int = MAX_UPSTREAM
    ) -> tuple[Item, Folder] | None:
        """Return the nearest folder of "samples" or "tokens" that an item was made from."""
        item = self.item(id)
        if item.kind == "stage":
            folder = self.folder(id)
            if folder.content == content:
                return item, folder
        found = (self.upstream(i.id, content, depth - 1) for i in self.inputs(id) if depth)
        return next((pair for pair in found if pair is not None), None)

    def data_of_plan(self, id: str) -> Item | None:
        """Return the length table or the tokens that a plan packs: they have its digest.

        A stage that reads both the plan and its tokens decides between several.
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
            and self._lengths_digest(item) == plan.lengths_digest
        ]
        for item, folder in self.folders():
            read = inputs_of(folder.reads, item.path, self.items())
            named = [other for other in read if other in fitting]
            if named and any(other.path == plan_path for other in read):
                return named[0]
        return fitting[0] if fitting else None

    def _lengths_digest(self, item: Item) -> str:
        manifest = self.folder(item.id).manifest
        if manifest is None:
            return ""

        def read() -> str:
            try:
                return lengths_digest(open_tokens(item.path, manifest))
            except (ShardmillError, OSError):  # tokens that cannot be read are no plan's
                return ""

        return self.cached(("lengths digest", item.id, manifest.units_digest), read)

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
        return self._keep(self._tables, MAX_TABLES, key, make)

    def _keep(
        self, cache: dict[Hashable, Any], limit: int, key: Hashable, make: Callable[[], T]
    ) -> T:
        with self.lock:
            if key in cache:
                known: T = cache[key]
                return known
        # Made without the lock: two requests may make the same, but none waits for the other's.
        made = make()
        with self.lock:
            while len(cache) >= limit:
                cache.pop(next(iter(cache)))
            cache[key] = made
        return made


def sample_place(
    samples: tuple[Item, Folder] | None, key: str, shard: str | None
) -> dict[str, Any] | None:
    """Return id and number of the sample that a row or an image was made from, None if not here."""
    if samples is None:
        return None
    item, folder = samples
    number = folder.find_sample(sample_key(key), shard)
    return None if number is None else {"id": item.id, "number": number}
