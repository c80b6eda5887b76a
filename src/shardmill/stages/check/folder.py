"""Compares a folder with its receipts, byte by byte, and makes what is broken pending again.

The files of each unit, the index of a tar against the tar itself, the ranges that units wrote into
shared files, and keys that two samples of a folder share. Everything here only reads, except
`repair`, which removes receipts (and the manifest first): then running the stage again does just
the broken units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from shardmill import humanize
from shardmill.errors import FormatError, ShardmillError
from shardmill.formats.sharedfiles import (
    REST_NAME,
    ROLE,
    Range,
    checksum_outside,
    ranges_by_file,
    read_ranges,
    read_rest,
    rest_names,
)
from shardmill.model.manifest import (
    FileEntry,
    Receipt,
    ShardEntry,
    StageRecord,
    build_manifest,
    manifest_to_plain,
    receipt_digest,
    receipt_to_plain,
    record_digest,
    record_to_plain,
)
from shardmill.model.stage import Unit, unit_to_plain
from shardmill.shards.commit import checksum_file
from shardmill.shards.ledger import FOLDERS, TASK_FOLDERS, Ledger
from shardmill.shards.samples import open_foreign
from shardmill.shards.tar.index import TarIndex, open_tar_index
from shardmill.storage.files import list_names
from shardmill.storage.path import as_path
from shardmill.storage.prefetch import map_ahead
from shardmill.storage.text import dump_line, dump_page

UNITS_NAME = "units.jsonl"
CHUNK_BYTES = 1 << 20
PLACES = ("start", "first", "offset", "size")
CHECKED_FOLDERS = ("shards", "rejects", "receipts")
NUM_THREADS = 8
UNITS_AHEAD = 256
MAX_REPEATED_KEYS = 100  # of a key column that was ill chosen, all of them may repeat


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
    # What no receipt speaks of: the time and size of inputs, notes of runs, files of others.
    uncovered: tuple[str, ...] = ()

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
    # As they are stored: places are no part of what can be wrong with the data.
    record = ledger.read_stage(as_stored=True)
    if record is None:
        raise ShardmillError(f"{out} is not a folder of shardmill: it has no stage.json")
    try:
        units = ledger.read_units(as_stored=True)
    except FileNotFoundError as error:
        what = "is missing: run the command that makes the folder again"
        raise FormatError(what, path=ledger.out_dir / "units.jsonl") from error
    check = partial(_check_unit, ledger, record, deep)
    # Hashing and reading leave Python's lock, so threads are enough.
    results = list(map_ahead(check, units, threads=NUM_THREADS, ahead=UNITS_AHEAD))
    receipts = [result.receipt for result in results if result.receipt]
    problems = [problem for result in results for problem in result.problems]
    if ledger.manifest_path.exists() or len(receipts) == len(units):
        problems += _check_manifest(ledger, record, units, receipts)
        if not any(problem.path == UNITS_NAME for problem in problems):  # or all are strangers
            problems += _find_strangers(ledger, units, receipts)
        problems += _check_records(ledger, record, units)
        problems += _check_rest(ledger, record, receipts, deep)
    if deep and not problems:  # a damaged index has no keys to compare
        problems += _find_repeated_keys(ledger, receipts)
    return Verdict(
        out_dir=ledger.out_dir,
        num_units=len(units),
        num_files=sum(len(receipt.entries) for receipt in receipts),
        num_bytes=sum(entry.num_bytes for receipt in receipts for entry in receipt.entries),
        num_missing=sum(result.receipt is None and not result.problems for result in results),
        problems=tuple(problems),
        uncovered=tuple(_find_uncovered(ledger)),
    )


def repair(verdict: Verdict) -> tuple[str, ...]:
    """Make the broken units pending, and return them; run the stage again to have them back."""
    # Also without broken units: a manifest that does not fit the receipts is made again from them.
    if verdict.problems:
        Ledger(verdict.out_dir).forget(verdict.broken_units)
    return verdict.broken_units


@dataclass(frozen=True, slots=True)
class _UnitResult:
    """A unit's receipt if it can be read, and what is wrong with it or its files."""

    receipt: Receipt | None
    problems: tuple[Problem, ...] = ()


def _check_unit(ledger: Ledger, record: StageRecord, deep: bool, unit: Unit) -> _UnitResult:
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
    if ledger.receipt_path(unit.name).read_bytes() != dump_page(receipt_to_plain(receipt)):
        return _UnitResult(None, (Problem(unit.name, path, "is not as it was written"),))
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
        manifest = ledger.read_manifest(as_stored=True)
        if manifest is None:
            yield Problem("", "manifest.json", f"is missing, though all units are done: {again}")
        elif len(receipts) < len(units):
            what = f"is there, though only {len(receipts)} of {len(units)} units are done: {again}"
            yield Problem("", "manifest.json", what)
        elif (expected := build_manifest(record, units, receipts)).units_digest != (
            manifest.units_digest
        ):
            what = f"lists {humanize.plural(len(units), 'unit')}, not those of the manifest"
            yield Problem("", UNITS_NAME, f"{what}: put it back, or make the folder again")
        elif manifest != expected or ledger.manifest_path.read_bytes() != dump_page(
            manifest_to_plain(expected)
        ):
            yield Problem("", "manifest.json", f"does not list what the receipts say: {again}")
    except FormatError as error:
        yield Problem("", "manifest.json", f"{error.problem}: {again}")
    except ShardmillError as error:
        yield Problem("", "receipts/", str(error))


def _check_records(ledger: Ledger, record: StageRecord, units: Sequence[Unit]) -> Iterator[Problem]:
    """Yield which of the records that say what was done are not as they were written."""
    if record.digest != record_digest(record.stage, record.version):
        yield Problem("", "stage.json", "does not have the digest of its own spec")
    lines = b"".join(dump_line(unit_to_plain(unit)) for unit in units)
    for name, content in (
        ("stage.json", dump_page(record_to_plain(record))),
        ("units.jsonl", lines),
    ):
        if (ledger.out_dir / name).read_bytes() != content:
            yield Problem("", name, "is not as it was written")
    # No digest covers places; the fingerprint of the input has each of them once more.
    try:
        inputs = ledger.read_inputs()
    except FormatError as error:
        yield Problem("", "inputs.json", error.problem)
        return
    strange = sorted({p for unit in units for p in unit.places if p not in (inputs or {})})
    if inputs is not None and strange:
        what = f"names {strange[0]}, which inputs.json does not: one of them is damaged"
        yield Problem("", UNITS_NAME, what)


def _check_rest(
    ledger: Ledger, record: StageRecord, receipts: Sequence[Receipt], deep: bool
) -> Iterator[Problem]:
    """Yield what is wrong with the files that belong to no unit (see `formats.sharedfiles`)."""
    again = f"shardmill check {ledger.out_dir} --repair makes it again"
    try:
        entries = read_rest(ledger.out_dir)
        shards = [shard for receipt in receipts for shard in receipt.shards]
        ranges = ranges_by_file(ledger.out_dir, shards)
    except FileNotFoundError:
        if record.content == "export" and next(rest_names(ledger.out_dir), None) is not None:
            yield Problem("", REST_NAME, f"is missing: {again}")
        return
    except FormatError as error:
        yield Problem("", error.path.rpartition("/")[2], f"{error.problem}: {again}")
        return
    for entry in entries:
        path = ledger.out_dir / entry.path
        try:
            num_bytes = path.stat().st_size
            if num_bytes != entry.num_bytes:
                what = f"has {num_bytes} bytes, {REST_NAME} says {entry.num_bytes}: {again}"
                yield Problem("", entry.path, what)
            elif deep and checksum_outside(path, ranges.get(entry.path, [])) != entry.checksum:
                yield Problem("", entry.path, f"is not what {REST_NAME} says: {again}")
        except OSError as error:
            yield Problem("", entry.path, f"cannot be read: {error.strerror}: {again}")


def _find_uncovered(ledger: Ledger) -> Iterator[str]:
    known = set()
    with suppress(FileNotFoundError, FormatError):
        known = {entry.path for entry in read_rest(ledger.out_dir)}
    yield "inputs.json"
    for name in (*FOLDERS, *TASK_FOLDERS):
        if name not in CHECKED_FOLDERS and list_names(ledger.out_dir / name):
            yield f"{name}/"
    yield from (name for name in rest_names(ledger.out_dir) if name not in known)


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
    for folder in CHECKED_FOLDERS:
        for path in sorted((ledger.out_dir / folder).iterdir()):
            name = f"{folder}/{path.name}"
            if name not in known:
                yield Problem("", name, "belongs to no unit: move it away, a reader may take it in")


def check_tar(out_dir: Path, shard: ShardEntry) -> Iterator[tuple[str, str]]:
    """Yield (path, what is wrong) for a shard that has a tar and its index."""
    if not {"tar", "idx"} <= shard.files.keys():
        return
    tar_path, index_path = shard.files["tar"].path, shard.files["idx"].path
    try:
        index = open_tar_index(out_dir / index_path)
        walked, grouped = open_foreign(str(out_dir / tar_path))
        with walked:
            yield from ((tar_path, str(error)) for _, error in grouped.bad)
            yield from ((index_path, what) for what in _differences(index, walked.index, shard))
    except FormatError as error:
        yield tar_path if error.path.endswith(tar_path) else index_path, str(error)


def _differences(index: TarIndex, walked: TarIndex, shard: ShardEntry) -> Iterator[str]:
    if not len(index) == len(walked) == shard.num_samples:
        yield (
            f"lists {len(index)} samples, the tar holds {len(walked)}, the receipt says "
            f"{shard.num_samples}"
        )
        return
    if list(index.keys) != list(walked.keys):
        yield "lists other keys than the tar"
    for name in PLACES:
        if not np.array_equal(index.arrays[name], walked.arrays[name]):
            yield f"array {name!r} does not fit the tar"


def check_ranges(out_dir: Path, shard: ShardEntry) -> Iterator[tuple[str, str]]:
    """Yield (path, what is wrong) for a shard that lies in shared files."""
    if ROLE not in shard.files:
        return
    path = shard.files[ROLE].path
    try:
        ranges = read_ranges(out_dir / path)
    except FormatError as error:
        yield path, error.problem
        return
    for part in ranges:
        try:
            checksum = _checksum(out_dir / part.file, part)
        except OSError as error:
            yield part.file, f"cannot be read: {error.strerror}"
            continue
        if checksum != part.checksum:
            yield (
                part.file,
                f"has the checksum {checksum} in the {part.num_bytes} bytes from "
                f"{part.offset}, {path} says {part.checksum}",
            )


def _checksum(path: Path, part: Range) -> str:
    state, left = xxhash.xxh3_64(), part.num_bytes
    with path.open("rb", buffering=0) as file:
        file.seek(part.offset)
        while left and (chunk := file.read(min(CHUNK_BYTES, left))):
            state.update(chunk)
            left -= len(chunk)
    return str(state.hexdigest())


class RepeatedKey(NamedTuple):
    """A key, and two of the indexes that hold it."""

    key: str
    first_path: Path
    second_path: Path


def find_repeated_keys(index_paths: Sequence[Path]) -> Iterator[RepeatedKey]:
    """Yield the keys that stand in more than one place; 16 bytes a sample are held."""
    hashes = [open_tar_index(path).arrays["hash"] for path in index_paths]
    if not hashes:
        return
    owners = np.repeat(np.arange(len(hashes)), [len(some) for some in hashes])
    joined = np.concatenate(hashes)
    order = np.argsort(joined, kind="stable")
    # Equal hashes are neighbours now; only there can two keys be equal.
    for place in np.flatnonzero(joined[order][1:] == joined[order][:-1]).tolist():
        first, second = (int(owners[order[place + i]]) for i in (0, 1))
        wanted = int(joined[order[place]])
        shared = _keys_with(open_tar_index(index_paths[first]), wanted) & _keys_with(
            open_tar_index(index_paths[second]), wanted
        )
        for key in sorted(shared):
            yield RepeatedKey(key, index_paths[first], index_paths[second])


def _keys_with(index: TarIndex, wanted: int) -> set[str]:
    table, order = index.arrays["hash"], index.arrays["hash_order"]
    start, stop = (
        int(np.searchsorted(table, np.uint64(wanted), side)) for side in ("left", "right")
    )
    return {index.keys[int(order[row])] for row in range(start, stop)}
