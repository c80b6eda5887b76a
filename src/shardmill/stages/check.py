"""Compares a folder with its receipts, byte by byte, and makes what is broken pending again.

Everything here only reads, except `repair`, which removes receipts (and the manifest first): then
running the stage again does just the broken units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from shardmill.errors import FormatError, ShardmillError
from shardmill.io.commit import checksum_file
from shardmill.io.receipts import Ledger, StageRecord
from shardmill.model.manifest import (
    FileEntry,
    Receipt,
    build_manifest,
    receipt_digest,
)
from shardmill.model.stage import Unit
from shardmill.remote.path import as_path
from shardmill.stages.checkkeys import find_repeated_keys
from shardmill.stages.checkranges import check_ranges
from shardmill.stages.checktar import check_tar

NUM_THREADS = 8
UNITS_AT_ONCE = 256
MAX_REPEATED_KEYS = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as the receipts say; `unit` is '' if it belongs to none."""

    unit: str
    path: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a check found; `num_files` and `num_bytes` were compared."""

    out_dir: Path
    num_units: int
    num_files: int
    num_bytes: int
    num_missing: int
    problems: tuple[Problem, ...]

    @property
    def sound(self) -> bool:
        """Whether everything that should be there is there and right."""
        return not self.problems and self.num_missing == 0

    @property
    def broken_units(self) -> tuple[str, ...]:
        """The units that have to be done again."""
        return tuple(sorted({problem.unit for problem in self.problems if problem.unit}))


def check_folder(out: Path | str, *, deep: bool = True) -> Verdict:
    """Compare sizes and, if `deep`, every byte with the receipts, and these with the manifest.

    Units without a receipt are counted as missing: the folder may not be finished yet.
    """
    ledger = Ledger(as_path(out))
    record = ledger.read_stage()
    if record is None:
        raise ShardmillError(f"{out} is not a folder of shardmill: it has no stage.json")
    units = ledger.read_units()
    results = list(_check_units(ledger, record, units, deep))
    receipts = [result.receipt for result in results if result.receipt]
    problems = [problem for result in results for problem in result.problems]
    if ledger.manifest_path.exists() or len(receipts) == len(units):
        problems += _check_manifest(ledger, record, units, receipts)
        problems += _find_strangers(ledger, units, receipts)
    if deep and not problems:  # a damaged index has no keys to compare
        problems += _find_repeated_keys(ledger, receipts)
    return Verdict(
        out_dir=ledger.out_dir,
        num_units=len(units),
        num_files=sum(len(receipt.entries) for receipt in receipts),
        num_bytes=sum(entry.num_bytes for receipt in receipts for entry in receipt.entries),
        num_missing=sum(result.receipt is None and not result.problems for result in results),
        problems=tuple(problems),
    )


def repair(verdict: Verdict) -> tuple[str, ...]:
    """Make the broken units pending, and return them; run the stage again to have them back."""
    if verdict.problems:
        Ledger(verdict.out_dir).forget(verdict.broken_units)
    return verdict.broken_units


@dataclass(frozen=True, slots=True)
class _UnitResult:
    """A unit's receipt if it can be read, and what is wrong with it or its files."""

    receipt: Receipt | None
    problems: tuple[Problem, ...] = ()


def _check_units(
    ledger: Ledger, record: StageRecord, units: Sequence[Unit], deep: bool
) -> Iterator[_UnitResult]:
    def check(unit: Unit) -> _UnitResult:
        return _check_unit(ledger, record, unit, deep)

    # Hashing and reading leave Python's lock, so threads are enough. In slices, so that a folder
    # of a million units does not become a million waiting tasks.
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        waiting = iter(units)
        while some := list(islice(waiting, UNITS_AT_ONCE)):
            yield from pool.map(check, some)


def _check_unit(ledger: Ledger, record: StageRecord, unit: Unit, deep: bool) -> _UnitResult:
    path = f"receipts/{unit.name}.json"
    try:
        receipt = ledger.read_receipt(unit.name)
    except FormatError as error:
        return _UnitResult(None, (Problem(unit.name, path, error.problem),))
    if receipt is None:
        return _UnitResult(None)
    if receipt.digest != receipt_digest(record.digest, unit):
        what = "was written for another spec or input"
        return _UnitResult(None, (Problem(unit.name, path, what),))
    problems = [
        Problem(unit.name, entry.path, what)
        for entry in receipt.entries
        for what in _check_file(ledger.out_dir, entry, deep)
    ]
    if deep and not problems:
        problems += [
            Problem(unit.name, path, what)
            for shard in receipt.shards
            for check in (check_tar, check_ranges)
            for path, what in check(ledger.out_dir, shard)
        ]
    return _UnitResult(receipt, tuple(problems))


def _check_file(out_dir: Path, entry: FileEntry, deep: bool) -> Iterator[str]:
    path = out_dir / entry.path
    try:
        num_bytes = path.stat().st_size
        if num_bytes != entry.num_bytes:
            yield f"has {num_bytes} bytes, its receipt says {entry.num_bytes}"
        elif deep:
            checksum = checksum_file(path).checksum
            if checksum != entry.checksum:
                yield f"has the checksum {checksum}, its receipt says {entry.checksum}"
    except OSError as error:
        yield f"cannot be read: {error.strerror}"


def _check_manifest(
    ledger: Ledger, record: StageRecord, units: Sequence[Unit], receipts: Sequence[Receipt]
) -> Iterator[Problem]:
    again = "run the stage again, after a repair"
    try:
        manifest = ledger.read_manifest()
        if manifest is None:
            yield Problem("", "manifest.json", f"is missing, though all units are done: {again}")
        elif len(receipts) < len(units):
            what = f"is there, though only {len(receipts)} of {len(units)} units are done: {again}"
            yield Problem("", "manifest.json", what)
        elif manifest != build_manifest(record.stage, record.digest, units, receipts):
            yield Problem("", "manifest.json", f"does not list what the receipts say: {again}")
    except FormatError as error:
        yield Problem("", "manifest.json", f"{error.problem}: {again}")
    except ShardmillError as error:
        yield Problem("", "receipts/", str(error))


def _find_repeated_keys(ledger: Ledger, receipts: Sequence[Receipt]) -> Iterator[Problem]:
    paths = [
        ledger.out_dir / shard.files["idx"].path
        for receipt in receipts
        for shard in receipt.shards
        if "tar" in shard.files and "idx" in shard.files
    ]
    for repeat in islice(find_repeated_keys(paths), MAX_REPEATED_KEYS):
        what = f"has the key {repeat.key!r}, as {repeat.first_path.name} has: choose another key"
        yield Problem("", f"shards/{repeat.second_path.name}", what)


def _find_strangers(
    ledger: Ledger, units: Sequence[Unit], receipts: Sequence[Receipt]
) -> Iterator[Problem]:
    """Yield what lies among our files without belonging to any unit."""
    known = {entry.path for receipt in receipts for entry in receipt.entries}
    known |= {f"receipts/{unit.name}.json" for unit in units}
    for folder in ("shards", "rejects", "receipts"):
        for path in sorted((ledger.out_dir / folder).iterdir()):
            name = f"{folder}/{path.name}"
            if name not in known:
                yield Problem("", name, "belongs to no unit: move it away, a reader may take it in")
