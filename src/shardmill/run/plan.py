"""What is to be done in a folder, whether it still is, and the manifest once all of it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardmill.errors import ConfigError, StaleError
from shardmill.io.jsontext import dump_line, parse_json
from shardmill.io.receipts import FILES, FOLDERS, TASK_FOLDERS, Ledger, StageRecord
from shardmill.model.codec import differences, to_plain
from shardmill.model.manifest import Manifest, build_manifest, stage_digest
from shardmill.model.stage import Stage, Unit, WholeStage, check_name
from shardmill.remote.path import UrlPath
from shardmill.run.budget import check_skips
from shardmill.run.replan import (
    FindOthers,
    can_keep_receipts,
    remove_outdated,
    withdraw_plan,
)
from shardmill.run.shared import make_shared_files

MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Planned:
    """The units of a folder; `num_kept` of them were done when other inputs made the plan anew."""

    units: list[Unit]
    num_kept: int | None = None


def check_spec(ledger: Ledger, stage: Stage) -> bool:
    """Return whether the folder was planned; raise `StaleError` if for another spec."""
    record = ledger.read_stage()
    if record is None:
        return False
    changes = _spec_changes(record, stage)
    if changes:
        raise StaleError(_refusal(ledger, "parameters", changes))
    return True


def check_fresh(ledger: Ledger, stage: Stage) -> bool:
    """Return whether the folder was planned; raise `StaleError` if for another spec or input."""
    if not check_spec(ledger, stage):
        return False
    changes = _input_changes(ledger.read_inputs(), _plain(stage.inputs()))
    if changes:
        raise StaleError(_refusal(ledger, "inputs", changes))
    return True


def plan_units(ledger: Ledger, stage: Stage, find_others: FindOthers) -> Planned:
    """Return the folder's units; list them and store the plan if nobody has yet.

    A plan from which nothing was made yet gives way to a new one, and so does one that has other
    inputs, if the receipts say which units these changed; and if no other run works on it.
    """
    planned = _planned(ledger, stage, find_others)
    if isinstance(stage, WholeStage):
        make_shared_files(ledger, stage.shared_files(planned.units), planned.units)
    return planned


def _planned(ledger: Ledger, stage: Stage, find_others: FindOthers) -> Planned:
    try:
        if check_fresh(ledger, stage):
            return Planned(ledger.read_units())
    except StaleError as refusal:
        return _plan_anew(ledger, stage, find_others, refusal)
    # The fingerprint is taken first: an input that changes while it is listed is noticed later.
    inputs = stage.inputs()
    store_plan(ledger, stage, inputs, list(stage.units()))
    return Planned(ledger.read_units())


def _plan_anew(
    ledger: Ledger, stage: Stage, find_others: FindOthers, refusal: StaleError
) -> Planned:
    inputs = stage.inputs()
    is_touched = bool(ledger.receipt_names())
    if is_touched and not (_is_for(ledger, stage) and can_keep_receipts(ledger, stage, inputs)):
        raise refusal
    if ledger.manifest_path.exists():
        raise refusal
    units = list(stage.units())
    withdraw_plan(ledger, find_others, refusal)
    num_kept = store_plan(ledger, stage, inputs, units)
    return Planned(ledger.read_units(), num_kept if is_touched else None)


def store_plan(
    ledger: Ledger, stage: Stage, inputs: Mapping[str, Any], units: Sequence[Unit]
) -> int:
    """Store that these units of a stage are what is to be done; the folder is not complete now.

    Returns how many of them were done already, for an earlier plan.
    """
    _check_units(units)
    record = StageRecord(to_plain(stage), type(stage).version, stage_digest(stage))
    ledger.forget([])
    num_kept = 0
    if ledger.read_stage() is not None:
        ledger.withdraw_inputs()
        num_kept = remove_outdated(ledger, units, record.digest)
    ledger.write_plan(record, inputs, units)
    return num_kept


def check_writable(ledger: Ledger) -> None:
    """Raise `ConfigError` if nothing can ever be written there."""
    if isinstance(ledger.out_dir, UrlPath) and ledger.out_dir.is_web:
        raise ConfigError(
            f"{ledger.out_dir}: a web server cannot be written to: name a folder, or a url of an "
            "object store"
        )


def check_place(ledger: Ledger) -> None:
    """Raise `ConfigError` if the folder holds something that is not ours."""
    if ledger.out_dir.is_file():
        raise ConfigError(f"{ledger.out_dir} is a file: name a folder to write to")
    if ledger.read_stage() is not None or not ledger.out_dir.exists():
        return
    strange = sorted(
        {path.name for path in ledger.out_dir.iterdir()} - {*FOLDERS, *TASK_FOLDERS, *FILES}
    )
    if strange:
        raise ConfigError(
            f"{ledger.out_dir} holds other things ({', '.join(strange[:3])}): name a folder that "
            "is empty or does not exist yet"
        )


def part_of(units: Sequence[Unit], part: tuple[int, int]) -> Sequence[Unit]:
    """Return part i of n, counted from 1: a run of neighbours, as compressed inputs like it."""
    number, total = part
    if not 1 <= number <= total:
        raise ConfigError(f"part must be i/n with 1 <= i <= n, got {number}/{total}")
    return units[len(units) * (number - 1) // total : len(units) * number // total]


def collect(
    ledger: Ledger, stage: Stage, units: Sequence[Unit], *, max_skip_rate: float
) -> Manifest | None:
    """Write the manifest if every unit has its receipt; return it, or None.

    Raises `TooManySkips` if all units together are beyond the budget.
    Whoever sees the last receipt may do this, even several at once: the bytes are the same.
    """
    mark = stage_digest(stage)
    receipts = []
    for receipt in ledger.valid_receipts(units, mark):
        if receipt is None:
            return None
        receipts.append(receipt)
    check_skips(ledger.out_dir, receipts, max_skip_rate)
    manifest = build_manifest(to_plain(stage), mark, units, receipts)
    if isinstance(stage, WholeStage):
        stage.finish(manifest, ledger.out_dir)
    ledger.write_manifest(manifest)
    return manifest


def _is_for(ledger: Ledger, stage: Stage) -> bool:
    record = ledger.read_stage()
    return record is not None and record.digest == stage_digest(stage)


def _check_units(units: Sequence[Unit]) -> None:
    seen = set()
    for unit in units:
        check_name(unit.name)
        if unit.name in seen:
            raise ConfigError(f"two units are named {unit.name!r}: names must differ")
        seen.add(unit.name)


def _spec_changes(record: StageRecord, stage: Stage) -> list[str]:
    if record.digest == stage_digest(stage):
        return []
    changes = differences(record.stage, to_plain(stage))
    if record.version != type(stage).version:
        changes.append(f"version of the stage: {record.version} -> {type(stage).version}")
    return changes or ["the stage's digest"]


def _input_changes(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[str]:
    if old is None:
        return ["inputs.json is missing: the folder was being planned anew"]
    lines = [f"removed: {name}" for name in sorted(old.keys() - new.keys())]
    lines += [f"added: {name}" for name in sorted(new.keys() - old.keys())]
    both = sorted(old.keys() & new.keys())
    return lines + [f"changed: {name}" for name in both if old[name] != new[name]]


def _refusal(ledger: Ledger, what: str, changes: Sequence[str]) -> str:
    listed = "".join(f"\n  {line}" for line in changes[:MAX_LISTED])
    more = f"\n  and {len(changes) - MAX_LISTED} more" if len(changes) > MAX_LISTED else ""
    return (
        f"{ledger.out_dir} was begun with other {what}:{listed}{more}\n"
        f"Write to another folder, remove {ledger.out_dir}, or run with what it was begun with"
    )


def _plain(inputs: Mapping[str, Any]) -> Any:
    """Return the fingerprint as it will read back from its file: tuples become lists."""
    return parse_json(dump_line(inputs))
