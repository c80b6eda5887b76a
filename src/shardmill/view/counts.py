"""The books as the page shows them: how a folder stands, its units, what was skipped and why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from shardmill.model.manifest import Receipt, ShardEntry
from shardmill.model.stage import Unit
from shardmill.run.status import Status, read_status
from shardmill.shards.ledger.rejects import read_rejects
from shardmill.storage.text import parse_json
from shardmill.view.folder import Folder
from shardmill.view.query import Budget

# A status that took long to read is read less often: at most a tenth of the time goes into it.
MIN_AGE_S, SHARE = 0.5, 10.0
MAX_REJECTS = 100


@dataclass(frozen=True, slots=True)
class _Read:
    status: Status
    at_s: float
    took_s: float


class StatusDesk:
    """Statuses of folders, kept for as long as reading them again would be too dear."""

    def __init__(self) -> None:
        self._read: dict[Path, _Read] = {}

    def of(self, folder: Folder) -> Status | None:
        """Return how a folder stands; None if it has no stage.json."""
        if folder.record is None:
            return None
        known = self._read.get(folder.path)
        now_s = time.monotonic()
        if known is not None and now_s - known.at_s < max(MIN_AGE_S, SHARE * known.took_s):
            return known.status
        with folder.lock:
            status = read_status(folder.path)
        self._read[folder.path] = _Read(status, time.monotonic(), time.monotonic() - now_s)
        return status


def state_of(status: Status) -> str:
    """Return "done", "running", "failed" or "waiting"."""
    if status.complete:
        return "done"
    if any(lock.alive for lock in status.locks):
        return "running"
    return "failed" if status.failures else "waiting"


def progress_of(status: Status) -> dict[str, Any]:
    """Return what moves while a stage runs."""
    return {
        "state": state_of(status),
        "units": status.num_units,
        "done": status.num_done,
        "failed": status.num_failed,
        "in": status.num_in,
        "kept": status.num_kept,
        "skipped": sum(status.skipped.values()),
        "shards": status.num_shards,
        "bytes": status.num_bytes,
        "rate": status.samples_per_s,
        "seconds_left": status.seconds_left,
        "running": [{"unit": u.unit, "seconds": u.seconds, "host": u.host} for u in status.running],
    }


def unit_rows(folder: Folder, units: list[Unit], running: set[str]) -> list[dict[str, Any]]:
    """Return a line for each of these units: its state and its books."""
    return [_unit_row(folder, unit, running) for unit in units]


def unit_books(folder: Folder, name: str) -> dict[str, Any]:
    """Return everything about one unit: its receipt, its files, its first rejects, its failure."""
    unit = folder.unit(name)
    receipt = folder.receipt(unit)
    first = first_numbers(folder)
    rejects = islice(read_rejects(folder.ledger.rejects_path(name)), MAX_REJECTS)
    return {
        **_unit_row(folder, unit, set()),
        "input": unit.input,
        "stats": dict(receipt.stats) if receipt else {},
        "skipped_by": dict(receipt.skipped) if receipt else {},
        "digest": receipt.digest if receipt else "",
        "files": [] if receipt is None else [_shard(entry, first) for entry in receipt.shards],
        "rejects": [asdict(reject) for reject in rejects],
        "failure": _failure(folder, name),
    }


def find_rejects(
    folder: Folder, reason: str, wanted: str, cursor: tuple[int, int], budget: Budget
) -> dict[str, Any]:
    """Return rejects of a reason ("" for all) whose key or detail holds `wanted`.

    The cursor is (file, line); the answer says where to go on, None at the end.
    """
    paths = sorted((folder.path / "rejects").glob("*.jsonl"))
    found: list[dict[str, Any]] = []
    needle = wanted.casefold()
    for file in range(cursor[0], len(paths)):
        first = cursor[1] if file == cursor[0] else 0
        for line, reject in enumerate(islice(read_rejects(paths[file]), first, None), first):
            if len(found) >= MAX_REJECTS or budget.is_spent:
                return _page(found, [file, line], file, len(paths))
            text = f"{reject.key}\n{reject.detail}".casefold()
            if reason in ("", reject.reason) and needle in text:
                found.append({**asdict(reject), "unit": paths[file].stem})
    return _page(found, None, len(paths), len(paths))


def first_numbers(folder: Folder) -> Mapping[str, int]:
    """Return the number of the first sample of each shard by its name."""
    first: dict[str, int] = {}
    total = 0
    for entry in folder.entries():
        first[entry.name] = total
        total += entry.num_samples
    return first


def _page(found: list[Any], cursor: list[int] | None, done: int, total: int) -> dict[str, Any]:
    return {"found": found, "cursor": cursor, "searched": done, "of": total}


def _unit_row(folder: Folder, unit: Unit, running: set[str]) -> dict[str, Any]:
    receipt = folder.receipt(unit)
    return {
        "name": unit.name,
        "expected": unit.num_samples,
        "state": _unit_state(folder, unit, receipt, running),
        "in": receipt.num_in if receipt else None,
        "kept": receipt.num_kept if receipt else None,
        "skipped": sum(receipt.skipped.values()) if receipt else None,
        "shards": len(receipt.shards) if receipt else 0,
        "bytes": receipt.num_bytes if receipt else 0,
    }


def _unit_state(folder: Folder, unit: Unit, receipt: Receipt | None, running: set[str]) -> str:
    if receipt is not None:
        return "done"
    if unit.name in running:
        return "running"
    return "failed" if folder.ledger.failure_path(unit.name).exists() else "waiting"


def _shard(entry: ShardEntry, first: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": entry.name,
        "samples": entry.num_samples,
        "first": first.get(entry.name, 0),
        "files": [
            {"role": role, "path": file.path, "bytes": file.num_bytes, "checksum": file.checksum}
            for role, file in entry.files.items()
        ],
    }


def _failure(folder: Folder, name: str) -> dict[str, str] | None:
    try:
        plain = parse_json(folder.ledger.failure_path(name).read_bytes())
        return {"message": str(plain["message"]), "traceback": str(plain["traceback"])[-8000:]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
