"""The ledger of an output folder: what is planned, what is done, what failed.

    out/
      stage.json            the spec; written last of the first three, so present = planned
      units.jsonl           the units, in order, one a line
      inputs.json           a cheap fingerprint of the input
      shards/NAME.ROLE      data
      rejects/NAME.jsonl    the skipped samples of unit NAME, if any
      receipts/NAME.json    last: proof that unit NAME is done
      failures/NAME.json    why unit NAME failed the last time
      manifest.json         all shards in unit order; present = complete
      .draft/TOKEN/         private to one run

All JSON is UTF-8 with sorted keys, so the same work gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.errors import ConfigError, FormatError, ShardmillError
from shardmill.io.atomic import DISK, Disk, make_dirs, remove_files, write_file
from shardmill.io.jsontext import dump_line, dump_page, parse_json, read_json
from shardmill.model.codec import Plain
from shardmill.model.manifest import (
    Manifest,
    Receipt,
    manifest_from_plain,
    manifest_to_plain,
    receipt_digest,
    receipt_from_plain,
)
from shardmill.model.stage import Unit, unit_from_plain, unit_to_plain

FOLDERS = ("shards", "receipts", "rejects", "failures", "events", "locks", ".draft")
FILES = ("stage.json", "units.jsonl", "inputs.json", "manifest.json")


@dataclass(frozen=True, slots=True)
class StageRecord:
    """The content of stage.json: which spec makes this folder."""

    stage: Plain
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """One output folder; `token` names the run that writes into it and its private drafts."""

    out_dir: Path
    token: str = ""
    disk: Disk = DISK

    @property
    def draft_dir(self) -> Path:
        """The folder in which this run, and nobody else, writes unfinished files."""
        return self.out_dir / ".draft" / self.token

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

    def failure_path(self, unit_name: str) -> Path:
        """Why the unit failed the last time, if it did."""
        return self.out_dir / "failures" / f"{unit_name}.json"

    def make_folders(self) -> None:
        """Create the folders of the ledger."""
        for name in FOLDERS:
            make_dirs(self.out_dir / name, disk=self.disk)

    def write_plan(
        self, record: StageRecord, inputs: Mapping[str, Any], units: Iterable[Unit]
    ) -> None:
        """Store what is to be done; stage.json comes last and makes the other two count."""
        self._remove(self.out_dir / "stage.json")
        lines = b"".join(dump_line(unit_to_plain(unit)) for unit in units)
        self._write(self.out_dir / "units.jsonl", lines)
        self._write(self.out_dir / "inputs.json", dump_page(inputs))
        plain = {"stage": record.stage, "version": record.version, "digest": record.digest}
        self._write(self.out_dir / "stage.json", dump_page(plain))

    def read_stage(self) -> StageRecord | None:
        """Return what stage.json says, or None if nothing was planned here."""
        path = self.out_dir / "stage.json"
        if not path.exists():
            return None
        plain = read_json(path)
        try:
            return StageRecord(plain["stage"], plain["version"], plain["digest"])
        except (KeyError, TypeError) as error:
            raise FormatError(f"is not a stage record: {error}", path=path) from error

    def read_inputs(self) -> Any:
        """Return the fingerprint of the input at the time of planning."""
        return read_json(self.out_dir / "inputs.json")

    def read_units(self) -> list[Unit]:
        """Return the planned units in order."""
        path = self.out_dir / "units.jsonl"
        try:
            with path.open("rb") as lines:
                return [unit_from_plain(parse_json(line)) for line in lines]
        except (ValueError, ConfigError) as error:
            raise FormatError(f"is not a list of units: {error}", path=path) from error

    def read_receipt(self, unit_name: str) -> Receipt | None:
        """Return the unit's receipt, None if there is none; `FormatError` if it is broken."""
        path = self.receipt_path(unit_name)
        try:
            receipt = receipt_from_plain(read_json(path), path)
        except FileNotFoundError:
            return None
        if receipt.unit != unit_name:
            raise FormatError(f"is the receipt of unit {receipt.unit!r}", path=path)
        return receipt

    def valid_receipt(self, unit: Unit, stage_digest: str) -> Receipt | None:
        """Return the unit's receipt if it is for this stage and input and its files are there."""
        try:
            receipt = self.read_receipt(unit.name)
        except FormatError:
            return None
        if receipt is None or receipt.digest != receipt_digest(stage_digest, unit):
            return None
        return receipt if self._has_files(receipt) else None

    def pending(self, units: Iterable[Unit], stage_digest: str) -> list[Unit]:
        """Return the units that have no valid receipt, in order."""
        return [unit for unit in units if self.valid_receipt(unit, stage_digest) is None]

    def write_manifest(self, manifest: Manifest) -> None:
        """Declare the folder complete."""
        self._write(self.manifest_path, dump_page(manifest_to_plain(manifest)))

    def read_manifest(self) -> Manifest | None:
        """Return the manifest, or None if the folder is not complete."""
        path = self.manifest_path
        return manifest_from_plain(read_json(path), path) if path.exists() else None

    def forget(self, unit_names: Sequence[str]) -> None:
        """Make units pending again: first the manifest goes, then their receipts."""
        self._remove(self.manifest_path)
        remove_files((self.receipt_path(name) for name in unit_names), disk=self.disk)

    def write_failure(self, unit_name: str, failure: Mapping[str, Any]) -> None:
        """Keep why a unit failed, until it succeeds."""
        self._write(self.failure_path(unit_name), dump_page(failure))

    def read_failures(self) -> Iterator[dict[str, Any]]:
        """Yield the failure of each unit that failed and has not succeeded since."""
        for path in sorted((self.out_dir / "failures").glob("*.json")):
            with suppress(FileNotFoundError):
                yield read_json(path)

    def _has_files(self, receipt: Receipt) -> bool:
        try:
            return all(
                (self.out_dir / entry.path).stat().st_size == entry.num_bytes
                for entry in receipt.entries
            )
        except OSError:
            return False

    def _write(self, path: Path, content: bytes) -> None:
        write_file(path, content, draft_dir=self.draft_dir, disk=self.disk)

    def _remove(self, path: Path) -> None:
        remove_files([path], disk=self.disk)


def open_manifest(folder: Path) -> Manifest:
    """Return the manifest of a finished folder; otherwise say what is missing and what to do."""
    ledger = Ledger(Path(folder))
    manifest = ledger.read_manifest()
    if manifest is not None:
        return manifest
    record = ledger.read_stage()
    if record is None:
        problem = "it has no manifest.json" if ledger.out_dir.is_dir() else "it does not exist"
        raise ShardmillError(f"{folder} is not a dataset of shardmill: {problem}")
    units = ledger.read_units()
    num_missing = len(ledger.pending(units, record.digest))
    raise ShardmillError(
        f"{folder} is not finished: {num_missing} of {len(units)} units are missing. "
        "Run the command that makes it again; it goes on where it stopped"
    )
