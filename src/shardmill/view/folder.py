"""A stage folder opened for looking: its spec, its units, and the shards that receipts vouch for.

A folder that is still being made shows what is done so far. What was read is kept until the file
it came from changes; receipts are kept by unit, so that only new ones are read again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from shardmill.errors import FormatError
from shardmill.model.manifest import Manifest, Receipt, ShardEntry, receipt_digest
from shardmill.model.stage import Unit
from shardmill.shards.codes import CodeShard, open_codes
from shardmill.shards.ledger.ledger import Ledger, StageRecord
from shardmill.shards.samples.dataset import SampleSet, entry_index
from shardmill.shards.samples.shard import SampleShard
from shardmill.shards.tokens.dataset import TokenSet
from shardmill.storage.path import UrlPath
from shardmill.view.access import Fence
from shardmill.view.items import NotHere

Content = Literal["samples", "codes", "tokens", "packs", "lengths", "other"]
T = TypeVar("T")
# What a stage will write, where no shard says so yet.
BY_STAGE: dict[str, Content] = {
    "EncodeImages": "codes",
    "Tokenize": "tokens",
    "TokenizeText": "tokens",
    "Materialize": "packs",
    "Measure": "lengths",
}
VERBS = {"materialize": "pack", "tokenize_text": "tokenize"}
MAX_CODE_SHARDS = 64
STORE_AGE_S = 30.0
Stamp: TypeAlias = tuple[int, int]


@dataclass(eq=False)
class Folder:
    """One stage folder; `lock` guards the readers, which are not made for several threads."""

    path: Path
    fence: Fence
    lock: threading.RLock = field(default_factory=threading.RLock)
    _kept: dict[str, tuple[object, Any]] = field(default_factory=dict)
    _receipts: dict[str, tuple[Stamp, Receipt]] = field(default_factory=dict)

    @property
    def ledger(self) -> Ledger:
        """The folder as the runner sees it."""
        return Ledger(self.path)

    def check(self) -> None:
        """Raise `Refused` if a link in it leads out; looked at again when a listing changes."""
        places = [self.path, *(self.path / name for name in ("shards", "receipts", "rejects"))]
        self._keep("links", _stamps(places), lambda: self.fence.check_links(self.path))

    @property
    def record(self) -> StageRecord | None:
        """What stage.json says."""
        return self._keep(
            "record", _stamps([self.path / "stage.json"]), lambda: self.ledger.read_stage()
        )

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of the stage; empty if nobody knows it."""
        record = self.record
        plain = record.stage if record is not None else getattr(self.manifest, "stage", None)
        return plain if isinstance(plain, dict) else {}

    @property
    def stage_name(self) -> str:
        """The class of the stage: "Ingest"."""
        return str(self.spec.get("kind", "")).rpartition(":")[2]

    @property
    def verb(self) -> str:
        """The command that makes it, as far as it is one of ours: "ingest"."""
        module = str(self.spec.get("kind", "")).partition(":")[0]
        package, _, name = module.rpartition(".")
        if package != "shardmill.stages":
            return self.stage_name
        return VERBS.get(name, name)

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of a finished folder."""
        stamp = _stamps([self.path / "manifest.json"])
        return self._keep("manifest", stamp, lambda: self.ledger.read_manifest())

    def units(self) -> list[Unit]:
        """Return the planned units in order."""
        return self._keep("units", _stamps([self.path / "units.jsonl"]), self._read_units)

    def unit(self, name: str) -> Unit:
        """Return a unit by its name."""
        if not self.has_unit(name):
            raise NotHere(f"there is no unit {name!r} in {self.path.name}")
        return self._units_by_name()[name]

    def has_unit(self, name: str) -> bool:
        """Whether a unit has this name; a shard that was split off has one of its own."""
        return name in self._units_by_name()

    def receipt(self, unit: Unit) -> Receipt | None:
        """Return the valid receipt of a unit, or None; a broken one counts as none."""
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
        """Return the shards, in order: of the manifest, or of the receipts so far."""
        manifest = self.manifest
        if manifest is not None:
            return manifest.shards
        stamp = _stamps([self.path / "receipts", self.path / "units.jsonl"])
        return self._keep("entries", stamp, self._entries_so_far)

    @property
    def content(self) -> Content:
        """What the shards hold."""
        if self.stage_name in BY_STAGE:
            return BY_STAGE[self.stage_name]
        entries = self.entries()
        roles = set(entries[0].files) if entries else {"idx"}
        if "codes" in roles:
            return "codes"
        if "spans" in roles:
            return "tokens"
        # An export for Megatron has an index of its own kind beside each bin.
        return "samples" if "idx" in roles and "bin" not in roles else "other"

    def samples(self) -> SampleSet:
        """Return the samples; hold the lock while they are read."""
        entries = self.entries()
        samples: SampleSet = self._keep(
            "samples", id(entries), lambda: SampleSet(self.path, entries)
        )
        return samples

    def places(self) -> tuple[list[int], dict[str, int]]:
        """Return the first number of each shard that is not empty, and its place by its name."""
        entries = self.entries()

        def make() -> tuple[list[int], dict[str, int]]:
            full = [entry for entry in entries if entry.num_samples]
            starts = [0, *accumulate(entry.num_samples for entry in full)][:-1]
            return starts, {entry.name: place for place, entry in enumerate(full)}

        return self._keep("places", id(entries), make)

    def sample_shard(self, place: int) -> SampleShard:
        """Return an open shard of samples; `Refused` if its tar lies where nobody allowed."""
        samples = self.samples()
        checked: set[int] = self._keep("checked", id(self.entries()), set)
        if place not in checked:
            entry = samples.entries[place]
            url = None if "tar" in entry.files else entry_index(self.path, entry).url
            if url is not None:
                self.fence.check_url(url)
            checked.add(place)
        return samples.shard(place)

    def tokens(self) -> TokenSet:
        """Return the rows of tokens; hold the lock while they are read."""
        entries = tuple(entry for entry in self.entries() if entry.num_samples)
        found: TokenSet = self._keep(
            "tokens", id(self.entries()), lambda: TokenSet(self.path, entries)
        )
        return found

    def codes(self, number: int) -> CodeShard:
        """Return a shard of codes by its place in the list of shards."""
        shards: dict[int, CodeShard] = self._keep("codes", id(self.entries()), dict)
        if number not in shards:
            if len(shards) >= MAX_CODE_SHARDS:
                shards.clear()
            shards[number] = open_codes(self.path / self.entries()[number].files["codes"].path)
        return shards[number]

    def _units_by_name(self) -> dict[str, Unit]:
        units = self.units()
        return self._keep("by name", id(units), lambda: {unit.name: unit for unit in units})

    def _read_units(self) -> list[Unit]:
        try:
            return self.ledger.read_units()
        except FileNotFoundError:
            return []

    def _entries_so_far(self) -> tuple[ShardEntry, ...]:
        receipts = (self.receipt(unit) for unit in self.units())
        return tuple(shard for receipt in receipts if receipt for shard in receipt.shards)

    def _keep(self, name: str, stamp: object, make: Callable[[], T]) -> T:
        with self.lock:
            known = self._kept.get(name)
            if known is None or known[0] != stamp:
                known = self._kept[name] = stamp, make()
            value: T = known[1]
            return value


def _stamps(paths: Sequence[Path]) -> tuple[Stamp | None, ...]:
    """Return what changes when a file is replaced, or a listing changes."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> Stamp | None:
    if isinstance(path, UrlPath):  # each look is a request, so things are read again now and then
        return int(time.monotonic() / STORE_AGE_S), 0
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
