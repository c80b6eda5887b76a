"""A stage folder opened for reading: its spec, its units, and the shards that have receipts.

A folder that is still being made shows what is done so far. What was read is cached until the file
it came from changes; receipts are cached by unit, so that only new ones are read again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from shardmill.errors import FormatError
from shardmill.model.manifest import Manifest, Receipt, ShardEntry, StageRecord, receipt_digest
from shardmill.model.stage import Unit
from shardmill.shards.codes import CodeShard, open_codes
from shardmill.shards.ledger import Ledger
from shardmill.shards.samples import SampleDataset, SampleShard, entry_index
from shardmill.shards.tokens.shard import TokenDataset
from shardmill.storage.path import UrlPath
from shardmill.view.access import AccessPolicy
from shardmill.view.items import NotHere

T = TypeVar("T")
VERBS = {"tokenize-text": "tokenize", "adopt-tokens": "tokenize", "adopt-codes": "codes"}
MAX_CODE_SHARDS = 64
STORE_AGE_S = 30.0
Stamp: TypeAlias = tuple[int, int]


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
        """The places that the stage reads, by role, as they were given; raw inputs are "raw"."""
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
        """Return a unit by its name, or raise `NotHere`."""
        if not self.has_unit(name):
            raise NotHere(f"there is no unit {name!r} in {self.path.name}")
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
            url = None if "tar" in entry.files else entry_index(self.path, entry).url
            if url is not None:
                self.policy.check_url(url)
            checked.add(number)
        return samples.shard(number)

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
