"""The state of a folder, read from its ledger and its logs, while it is made or afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from pathlib import Path
from typing import Any

from shardmill.errors import ShardmillError
from shardmill.model.codec import Plain
from shardmill.model.manifest import sum_counts
from shardmill.model.stage import Reject
from shardmill.running.events import LoggedEvent, read_logs
from shardmill.running.lock import LockState, read_locks
from shardmill.running.progress import Progress
from shardmill.shards.ledger import Ledger, read_rejects, reject_lists
from shardmill.storage.path import as_path

NUM_EXAMPLES = 3
# A folder may have millions of rejects: a status that reads them all would take minutes.
MAX_REJECT_FILES = 200
MAX_REJECT_LINES = 2000
NUM_SLOW_UNITS = 5
TRACEBACK_LINES = 20


@dataclass(frozen=True, slots=True)
class UnitTime:
    """A unit and how long it took, or has been at work so far; where, and how many samples in."""

    unit: str
    seconds: float
    host: str
    pid: int
    num_in: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a unit failed the last time: the message, and the last lines of its traceback."""

    unit: str
    message: str
    tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a folder; rates and time left are None when no run is at work on it."""

    out_dir: Path
    stage: Plain
    stage_kind: str
    complete: bool
    num_units: int
    num_done: int
    num_in: int
    num_kept: int
    num_shards: int
    num_bytes: int
    skipped: Mapping[str, int]
    examples: Mapping[str, tuple[Reject, ...]]
    stats: Mapping[str, int]
    failures: tuple[Failure, ...]
    locks: tuple[LockState, ...]
    running: tuple[UnitTime, ...]
    slow_units: tuple[UnitTime, ...]
    samples_per_s: float | None
    bytes_per_s: float | None
    seconds_left: float | None

    @property
    def num_failed(self) -> int:
        """Units that failed and have not succeeded since."""
        return len(self.failures)

    @property
    def num_pending(self) -> int:
        """Units without a receipt, whether they failed or were not tried."""
        return self.num_units - self.num_done


def read_status(out: Path | str) -> Status:
    """Return how the folder stands; nothing is changed.

    Counts are those of the manifest if there is one, or else the sums over the receipts that are
    there. Raises `ShardmillError` if nothing was ever planned in the folder.
    """
    ledger = Ledger(as_path(out))
    record = ledger.read_stage()
    if record is None:
        raise ShardmillError(f"{out} is not a folder of shardmill: it has no stage.json")
    units, manifest = ledger.read_units(), ledger.read_manifest()
    if manifest is not None:
        done, shards = {unit.name for unit in units}, manifest.shards
        sums: dict[str, Any] = {
            "num_in": manifest.num_in,
            "num_kept": manifest.num_kept,
            "skipped": manifest.skipped,
            "stats": manifest.stats,
        }
    else:
        receipts = [found for found in ledger.read_receipts(units, record.digest) if found]
        done, sums = {receipt.unit for receipt in receipts}, sum_counts(receipts)
        shards = tuple(shard for receipt in receipts for shard in receipt.shards)
    locks = tuple(read_locks(ledger.out_dir / "locks"))
    activity = _read_activity(ledger, {lock.owner.token for lock in locks if lock.alive})
    failures = map(_failure, ledger.read_failures())
    num_pending = len(units) - len(done)
    return Status(
        out_dir=ledger.out_dir,
        stage=record.stage,
        stage_kind=str(record.stage["kind"]) if isinstance(record.stage, dict) else "",
        complete=manifest is not None,
        num_units=len(units),
        num_done=len(done),
        num_shards=len(shards),
        num_bytes=sum(shard.num_bytes for shard in shards),
        examples=_read_examples(ledger, sums["skipped"]),
        # A unit that is done has none, though a kill may have left its file.
        failures=tuple(failure for failure in failures if failure.unit not in done),
        locks=locks,
        running=tuple(activity.running),
        slow_units=tuple(activity.slow_units),
        samples_per_s=activity.samples_per_s,
        bytes_per_s=activity.bytes_per_s,
        seconds_left=num_pending / activity.units_per_s if activity.units_per_s else None,
        **sums,
    )


def _read_examples(ledger: Ledger, reasons: Iterable[str]) -> dict[str, tuple[Reject, ...]]:
    """Return a few rejects for each reason, from as few files as it takes."""
    examples: dict[str, list[Reject]] = {reason: [] for reason in reasons}
    for path in islice(reject_lists(ledger.out_dir).values(), MAX_REJECT_FILES):
        if all(len(found) >= NUM_EXAMPLES for found in examples.values()):
            break
        for reject in islice(read_rejects(path), MAX_REJECT_LINES):
            found = examples.setdefault(reject.reason, [])
            if len(found) < NUM_EXAMPLES:
                found.append(reject)
    return {reason: tuple(found) for reason, found in examples.items()}


def _failure(plain: Mapping[str, Any]) -> Failure:
    lines = str(plain.get("traceback", "")).splitlines()
    tail = "\n".join(lines[-TRACEBACK_LINES:])
    return Failure(str(plain.get("unit", "")), str(plain.get("message", "")), tail)


@dataclass(slots=True)
class _Activity:
    """What the logs say: of living runs what is at work and how fast, of all the slow units."""

    running: list[UnitTime] = field(default_factory=list)
    slow_units: list[UnitTime] = field(default_factory=list)
    units_per_s: float | None = None
    samples_per_s: float | None = None
    bytes_per_s: float | None = None


def _read_activity(ledger: Ledger, living_tokens: set[str]) -> _Activity:
    activity = _Activity()
    for token, events in read_logs(ledger.out_dir / "events"):
        times = (_unit_time(e, e.event.seconds) for e in events if e.event.kind == "done")
        activity.slow_units += nlargest(NUM_SLOW_UNITS, times, key=lambda unit: unit.seconds)
        if token in living_tokens and events:
            _add_living(activity, events)
    activity.slow_units = nlargest(
        NUM_SLOW_UNITS, activity.slow_units, key=lambda unit: unit.seconds
    )
    return activity


def _add_living(activity: _Activity, events: list[LoggedEvent]) -> None:
    progress = Progress(events[0].time_s)
    starts: dict[str, LoggedEvent] = {}
    for entry in events:
        progress.update(entry.event, entry.time_s)
        starts[entry.event.unit] = entry
    # The clock of another host may be ahead of ours.
    now_s = max(time.time(), events[-1].time_s)
    activity.running += [
        _unit_time(starts[name], now_s - began_s) for name, began_s in progress.running.items()
    ]
    activity.units_per_s = (activity.units_per_s or 0) + progress.units_per_s(now_s)
    activity.samples_per_s = (activity.samples_per_s or 0) + progress.samples_per_s(now_s)
    activity.bytes_per_s = (activity.bytes_per_s or 0) + progress.bytes_per_s(now_s)


def _unit_time(entry: LoggedEvent, seconds: float) -> UnitTime:
    return UnitTime(entry.event.unit, seconds, entry.host, entry.event.pid, entry.event.num_in)
