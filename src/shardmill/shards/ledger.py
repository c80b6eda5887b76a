"""The ledger of an output folder: what is planned, what is done, what failed.

    out/
      stage.json            the spec; written last of the first three, so present = planned
      units.jsonl           the units, in order, one a line
      inputs.json           a cheap fingerprint of the input; absent while the plan is made anew
      shards/NAME.ROLE      data
      rejects/NAME.jsonl    the skipped samples of unit NAME, if any, a line of JSON each
      receipts/NAME.json    last: proof that unit NAME is done
      failures/NAME.json    why unit NAME failed the last time
      earlier/NAME.json     the receipt of a unit whose rejects are tried again; its shards are used
      manifest.json         all shards in unit order; present = complete
      .draft/TOKEN/         private to one run

The folder may lie in an object store; then the drafts lie on a local disk (`scratch_dir`). All JSON
is UTF-8 with sorted keys, so the same work gives the same bytes. The places that it names are
stored as seen from the folder, and whole again when they are read (see `storage.path.Home`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

from shardmill.errors import ConfigError, FormatError, ShardmillError
from shardmill.model.codec import Plain, places_of, roots_of
from shardmill.model.manifest import (
    Manifest,
    Receipt,
    StageRecord,
    manifest_from_plain,
    manifest_to_plain,
    receipt_digest,
    receipt_from_plain,
    receipt_to_plain,
    record_from_plain,
    record_to_plain,
    with_places,
)
from shardmill.model.stage import Reject, Unit, unit_from_plain, unit_to_plain, unit_with_places
from shardmill.storage import objects
from shardmill.storage.cache import scratch_dir, scratch_root
from shardmill.storage.files import (
    DISK,
    Backend,
    Disk,
    backend_of,
    list_names,
    list_sizes,
    read_all,
    write_file,
)
from shardmill.storage.path import Home, UrlPath, as_path
from shardmill.storage.text import dump_line, dump_page, parse_json, parse_page, read_json

FOLDERS = ("shards", "receipts", "rejects", "failures", "earlier", "events", "locks", ".draft")
# Made only where tasks of a cluster share a folder.
TASK_FOLDERS = ("claims", "jobs")
FILES = ("stage.json", "units.jsonl", "inputs.json", "manifest.json")
# With fewer receipts, a local file of them is not worth its own reading and writing.
MIN_KEPT = 64
Kept: TypeAlias = dict[str, tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Ledger:
    """One output folder; `token` names the run that writes into it and its private drafts."""

    out_dir: Path
    token: str = ""
    disk: Disk = DISK

    @property
    def drafts_dir(self) -> Path:
        """The local folder of the drafts of all runs, one folder each."""
        if isinstance(self.out_dir, UrlPath):
            return scratch_dir(str(self.out_dir))
        return self.out_dir / ".draft"

    @property
    def draft_dir(self) -> Path:
        """The folder in which this run, and nobody else, writes unfinished files."""
        return self.drafts_dir / self.token

    @property
    def backend(self) -> Backend:
        """How files come into the folder."""
        return backend_of(self.out_dir, self.draft_dir, self.disk)

    @property
    def home(self) -> Home:
        """From where the places that it names are seen."""
        return Home(self.out_dir)

    @property
    def manifest_path(self) -> Path:
        """The file whose presence says that the folder is complete."""
        return self.out_dir / "manifest.json"

    @property
    def receipts_dir(self) -> Path:
        """The folder of receipts."""
        return self.out_dir / "receipts"

    def receipt_path(self, unit_name: str) -> Path:
        """The file whose presence says that the unit is done."""
        return self.receipts_dir / f"{unit_name}.json"

    def rejects_path(self, unit_name: str) -> Path:
        """The skipped samples of a unit, if it skipped any."""
        return self.out_dir / "rejects" / f"{unit_name}.jsonl"

    def earlier_path(self, unit_name: str) -> Path:
        """The receipt of a unit that is done again for its rejects."""
        return self.out_dir / "earlier" / f"{unit_name}.json"

    def failure_path(self, unit_name: str) -> Path:
        """Why the unit failed the last time, if it did."""
        return self.out_dir / "failures" / f"{unit_name}.json"

    def make_folders(self) -> None:
        """Create the folders of the ledger."""
        for name in FOLDERS:
            self.backend.make_folder(self.out_dir / name)

    def make_drafts(self) -> None:
        """Create the folder of this run's drafts, on every machine that works for it.

        A local one is made once, by the driver: that it is gone tells a run that was taken over.
        """
        self.draft_dir.mkdir(parents=True, exist_ok=True)

    def write_plan(
        self, record: StageRecord, inputs: Mapping[str, Any], units: Iterable[Unit]
    ) -> None:
        """Store what is to be done; stage.json comes last and makes the other two count.

        That of the same spec stays; then inputs.json, which goes first, makes the units count.
        """
        self.withdraw_inputs()
        old = self.read_stage()
        if old is not None and old.digest != record.digest:
            self.backend.remove([self.out_dir / "stage.json"])
        self.backend.put(self.out_dir / "units.jsonl", self._unit_lines(units))
        self.write_inputs(inputs)
        self.backend.put(self.out_dir / "stage.json", self._stage_page(record))

    def move_plan(
        self, record: StageRecord, inputs: Mapping[str, Any], units: Iterable[Unit]
    ) -> None:
        """Store where the input of the same plan is now; others may read the plan meanwhile."""
        pages = {
            "units.jsonl": self._unit_lines(units),
            "inputs.json": dump_page(inputs),
            "stage.json": self._stage_page(record),
        }
        manifest = self.read_manifest()
        if manifest is not None:
            moved = replace(manifest, stage=record.stage, reads=record.reads)
            pages["manifest.json"] = self._manifest_page(moved)
        for name, content in pages.items():
            if (self.out_dir / name).read_bytes() != content:
                write_file(self.out_dir / name, content, disk=self.disk)

    def _unit_lines(self, units: Iterable[Unit]) -> bytes:
        relative = self.home.relative
        stored = (unit_to_plain(unit_with_places(unit, relative)) for unit in units)
        return b"".join(map(dump_line, stored))

    def _stage_page(self, record: StageRecord) -> bytes:
        return dump_page(record_to_plain(with_places(record, self.home.relative)))

    def _manifest_page(self, manifest: Manifest) -> bytes:
        return dump_page(manifest_to_plain(with_places(manifest, self.home.relative)))

    def read_stage(self, *, as_stored: bool = False) -> StageRecord | None:
        """Return what stage.json says, or None if nothing was planned here."""
        path = self.out_dir / "stage.json"
        try:
            plain = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        record = record_from_plain(plain, path)
        return record if as_stored else with_places(record, self.home.locate)

    def read_inputs(self) -> Any:
        """Return the fingerprint of the input at the time of planning; None if none counts.

        Its paths are as seen from the folder (see `stored_inputs`).
        """
        path = self.out_dir / "inputs.json"
        try:
            inputs = read_json(path)
        except FileNotFoundError:
            return None
        if not isinstance(inputs, dict):
            raise FormatError("is not a table of inputs", path=path)
        return inputs

    def withdraw_inputs(self) -> None:
        """Make the plan one that nobody begins to work on."""
        self.backend.remove([self.out_dir / "inputs.json"])

    def write_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Store what the units were listed from, as `stored_inputs` returned it."""
        self.backend.put(self.out_dir / "inputs.json", dump_page(inputs))

    def stored_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a stage's fingerprint of its input as it reads back: tuples become lists."""
        home = self.home
        found = {
            home.relative(name) if name.startswith("/") or "://" in name else name: stamp
            for name, stamp in inputs.items()
        }
        stored: dict[str, Any] = parse_json(dump_line(found))
        return stored

    def read_units(self, *, as_stored: bool = False) -> list[Unit]:
        """Return the planned units in order."""
        path, locate = self.out_dir / "units.jsonl", self.home.locate
        try:
            lines = path.read_bytes().splitlines()
            units = [unit_from_plain(parse_json(line)) for line in lines]
            return units if as_stored else [unit_with_places(unit, locate) for unit in units]
        except (ValueError, ConfigError) as error:
            raise FormatError(f"is not a list of units: {error}", path=path) from error

    def receipt_names(self) -> set[str]:
        """Return the names of the units that have a receipt, which may be outdated."""
        return _unit_names(self.receipts_dir)

    def failure_names(self) -> set[str]:
        """Return the names of the units that failed and have not succeeded since."""
        return _unit_names(self.out_dir / "failures")

    def read_receipt(self, unit_name: str) -> Receipt | None:
        """Return the unit's receipt, None if there is none; `FormatError` if it is broken."""
        try:
            content = self.receipt_path(unit_name).read_bytes()
        except FileNotFoundError:
            return None
        return self._parse_receipt(unit_name, content)

    def read_receipts(self, units: Sequence[Unit], stage_digest: str) -> Iterator[Receipt | None]:
        """Yield the receipt of each unit if it is for this stage and input, else None.

        The folder is listed once, and only what is there is read; the files are not looked at.
        A listing may be old: who must know whether a receipt is there asks `valid_receipt`.
        """
        there = self.receipt_names()
        names = [f"{unit.name}.json" for unit in units if unit.name in there]
        contents = read_receipt_files(self.receipts_dir, names)
        for unit in units:
            content = next(contents) if unit.name in there else None
            yield None if content is None else self._fitting(unit, stage_digest, content)

    def valid_receipts(self, units: Sequence[Unit], stage_digest: str) -> Iterator[Receipt | None]:
        """Yield the receipt of each unit if it is for this stage and its files are there."""
        sizes = {
            f"{folder}/{name}": size
            for folder in ("shards", "rejects")
            for name, size in list_sizes(self.out_dir / folder).items()
        }
        for receipt in self.read_receipts(units, stage_digest):
            has_files = receipt is not None and all(
                sizes.get(entry.path) == entry.num_bytes for entry in receipt.entries
            )
            yield receipt if has_files else None

    def valid_receipt(self, unit: Unit, stage_digest: str) -> Receipt | None:
        """Return the unit's receipt if it is for this stage and input and its files are there."""
        return self.receipt_in(self.receipt_path(unit.name), unit, stage_digest)

    def receipt_in(self, path: Path, unit: Unit, stage_digest: str) -> Receipt | None:
        """Return the receipt in a file, if there is one that is valid."""
        try:
            receipt = self._fitting(unit, stage_digest, path.read_bytes())
        except FileNotFoundError:
            return None
        return receipt if receipt is not None and self._has_files(receipt) else None

    def pending(self, units: Sequence[Unit], stage_digest: str) -> list[Unit]:
        """Return the units that have no valid receipt, in order."""
        receipts = self.valid_receipts(units, stage_digest)
        return [unit for unit, receipt in zip(units, receipts) if receipt is None]

    def write_manifest(self, manifest: Manifest) -> None:
        """Declare the folder complete."""
        self.backend.put(self.manifest_path, self._manifest_page(manifest))

    def read_manifest(self, *, as_stored: bool = False) -> Manifest | None:
        """Return the manifest, or None if the folder is not complete."""
        path = self.manifest_path
        try:
            plain = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        manifest = manifest_from_plain(plain, path)
        return manifest if as_stored else with_places(manifest, self.home.locate)

    def forget(self, unit_names: Sequence[str]) -> None:
        """Make units pending again: first the manifest goes, then their receipts."""
        self.backend.remove([self.manifest_path])
        self.backend.remove(self.receipt_path(name) for name in unit_names)

    def write_failure(self, unit_name: str, failure: Mapping[str, Any]) -> None:
        """Keep why a unit failed, until it succeeds."""
        self.backend.put(self.failure_path(unit_name), dump_page(failure))

    def read_failures(self) -> Iterator[dict[str, Any]]:
        """Yield the failure of each unit that failed and has not succeeded since."""
        names = sorted(self.failure_names())
        contents = read_all(self.out_dir / "failures", [f"{name}.json" for name in names])
        for name, content in zip(names, contents):
            if content is not None:
                failure = parse_page(content, self.failure_path(name))
                if not isinstance(failure, dict):
                    raise FormatError("is not a failure", path=self.failure_path(name))
                yield failure

    def _fitting(self, unit: Unit, stage_digest: str, content: bytes) -> Receipt | None:
        try:
            receipt = self._parse_receipt(unit.name, content)
        except FormatError:
            return None
        return receipt if receipt.digest == receipt_digest(stage_digest, unit) else None

    def _parse_receipt(self, unit_name: str, content: bytes) -> Receipt:
        path = f"{self.out_dir}/receipts/{unit_name}.json"
        receipt = receipt_from_plain(parse_page(content, path), path)
        if receipt.unit != unit_name:
            raise FormatError(f"is the receipt of unit {receipt.unit!r}", path=path)
        return receipt

    def _has_files(self, receipt: Receipt) -> bool:
        try:
            return all(
                (self.out_dir / entry.path).stat().st_size == entry.num_bytes
                for entry in receipt.entries
            )
        except FileNotFoundError:
            return False


def open_manifest(folder: Path | str) -> Manifest:
    """Return the manifest of a finished folder; otherwise say what is missing and what to do."""
    ledger = Ledger(as_path(folder))
    manifest = ledger.read_manifest()
    if manifest is not None:
        return manifest
    raise ShardmillError(describe_unfinished(ledger))


def set_aside(ledger: Ledger, receipts: Sequence[Receipt]) -> None:
    """Make units pending again, and keep their receipts in earlier/."""
    for receipt in receipts:
        ledger.backend.put(ledger.earlier_path(receipt.unit), dump_page(receipt_to_plain(receipt)))
    ledger.forget([receipt.unit for receipt in receipts])


def earlier_files(ledger: Ledger, unit: Unit, stage_digest: str) -> tuple[dict[str, Path], ...]:
    """Return the files by role of the shards of which a receipt set aside speaks."""
    receipt = ledger.receipt_in(ledger.earlier_path(unit.name), unit, stage_digest)
    return tuple(
        {role: ledger.out_dir / entry.path for role, entry in shard.files.items()}
        for shard in (receipt.shards if receipt is not None else ())
    )


def reject_lists(folder: Path) -> dict[str, Path]:
    """Return the lists of a folder by the names of their units; a unit may have none."""
    lists = folder / "rejects"
    return {Path(name).stem: lists / name for name in list_names(lists)}


def read_rejects(path: Path) -> Iterator[Reject]:
    """Yield the rejects of a unit; none if it has no such file."""
    try:
        with path.open("rb") as lines:
            for line in lines:
                plain = parse_json(line)
                yield Reject(
                    key=str(plain["key"]),
                    reason=str(plain["reason"]),
                    detail=str(plain["detail"]),
                    filtered=bool(plain["filtered"]),
                )
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"is not a list of rejects: {error}", path=path) from error


def view_point(stage: Plain, unit: Unit) -> Path:
    """Return the folder from which the rejects of a unit name what they lack.

    That is where rows begin to look for media, and for all else the raw input: so what is said of
    a sample does not depend on where all of it is.
    """
    media_roots = [r for name, r in roots_of(stage).items() if name.endswith("media_root")]
    if media_roots:
        return as_path(media_roots[0][0])
    if unit.places:
        return as_path(unit.places[0]).parent
    return as_path(next(iter(places_of(stage)), "/"))


def _unit_names(folder: Path) -> set[str]:
    names = list_names(folder)
    return {name.removesuffix(".json") for name in names if name.endswith(".json")}


def describe_unfinished(ledger: Ledger) -> str:
    """Return what a folder without a manifest lacks."""
    folder, record = ledger.out_dir, ledger.read_stage()
    if record is None:
        problem = "it has no manifest.json" if folder.is_dir() else "it does not exist"
        return f"{folder} is not a dataset of shardmill: {problem}"
    units = ledger.read_units()
    num_missing = len(ledger.pending(units, record.digest))
    again = "Run the command that makes it again; it"
    if num_missing == 0:
        return (
            f"{folder} is not finished: all {len(units)} units are done, but not yet accepted as a "
            f"whole. {again} ends this, or says what is wrong"
        )
    return (
        f"{folder} is not finished: {num_missing} of {len(units)} units are missing. "
        f"{again} goes on where it stopped"
    )


def read_receipt_files(folder: Path, names: Sequence[str]) -> Iterator[bytes | None]:
    """Yield the content of each receipt, None for one that is gone."""
    if not isinstance(folder, UrlPath) or len(names) < MIN_KEPT:
        return read_all(folder, names)
    return iter(_read_cached(folder, names))


def _read_cached(folder: Path, names: Sequence[str]) -> list[bytes | None]:
    """Return receipts that lie in a store, of which only new ones are fetched.

    They are kept in one local file, a line each: [name, version, text]. A listing tells the version
    of a thousand receipts in one request, so `status` costs what was done since the last look.
    """
    tags = {info.path: info.tag for info in objects.list_here(str(folder))[1]}
    path = _cache_path(folder)
    kept = _load(path)
    new = [name for name in names if not tags.get(name) or kept.get(name, ("",))[0] != tags[name]]
    fetched = dict(zip(new, read_all(folder, new)))
    contents = [fetched[name] if name in fetched else kept[name][1] for name in names]
    if new:
        _store(path, tags, dict(zip(names, contents)))
    return contents


def _load(path: Path) -> Kept:
    kept: Kept = {}
    # What cannot be read is fetched again.
    with suppress(OSError, ValueError, TypeError, AttributeError):
        for line in path.read_bytes().splitlines():
            name, tag, text = parse_json(line)
            kept[name] = tag, text.encode()
    return kept


def _store(path: Path, tags: Mapping[str, str], contents: Mapping[str, bytes | None]) -> None:
    lines = (
        dump_line([name, tags.get(name, ""), content.decode("utf-8", "replace")])
        for name, content in contents.items()
        if content is not None
    )
    # Somebody without room for it can do without.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, b"".join(lines))


def _cache_path(folder: Path) -> Path:
    name = blake2b(str(folder).encode(), digest_size=16).hexdigest()
    return scratch_root() / "cache" / f"receipts-{name}"
