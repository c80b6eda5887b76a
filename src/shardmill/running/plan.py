"""What is to be done in a folder, whether that still holds, and the manifest once all is done.

A folder is planned once: stage.json, units.jsonl and inputs.json say for which spec and which
input. A run with another spec is refused. Where the input is and when it was written does not
count: if inputs.json knows it by another path or time, its content decides (`_same_content`), and
the plan is stored with the paths and times of now. A run with other inputs plans the folder anew,
if nothing was made yet or if receipts tell which units changed: a receipt carries the digest of its
unit and the checksum of what it read, so it is never believed for another. What is left of units
that changed or vanished is removed, because tasks believe the names of receipts, and readers of
shards/ the names of files. The order, each step lasting before the next:

    1. inputs.json goes: who starts now finds no plan that counts
    2. nobody else may be at work; a task makes its lock before it looks for inputs.json
    3. receipts of other units go, then all files that no receipt speaks of
    4. units.jsonl is replaced, then inputs.json is written

A crash between any two leaves a folder that the next run plans anew, by the same steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill import humanize
from shardmill.errors import ConfigError, FormatError, NothingKept, StaleError, TooManySkips
from shardmill.model.codec import differences, roots_of, to_plain
from shardmill.model.manifest import (
    Manifest,
    Receipt,
    StageRecord,
    build_manifest,
    stage_digest,
    stage_record,
)
from shardmill.model.stage import ContentKeyed, Stage, Unit, WholeStage, listed, skip_budget
from shardmill.running.engine import Accepted
from shardmill.shards.commit import checksum_read
from shardmill.shards.ledger import FILES, FOLDERS, TASK_FOLDERS, Ledger
from shardmill.storage.files import list_names
from shardmill.storage.path import Home, UrlPath, as_path, check_name, is_remote, is_same_place
from shardmill.storage.text import dump_line

MAX_LISTED = 8

FindOthers = Callable[[], Collection[str]]


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """The units of a folder; `num_kept` of them were done when other inputs made the plan anew."""

    units: list[Unit]
    num_kept: int | None = None


def plan_units(ledger: Ledger, stage: Stage, find_others: FindOthers) -> FolderPlan:
    """Return the folder's units; list them and store the plan if nobody has yet.

    A plan from which nothing was made yet gives way to a new one, and so does one that has other
    inputs, if the receipts say which units these changed; and if no other run works on it.
    `find_others` returns the tokens of other runs that live. Raises `StaleError`.
    """
    try:
        is_planned = check_fresh(ledger, stage)
    except StaleError as refusal:
        plan = _plan_anew(ledger, stage, find_others, refusal)
    else:
        if not is_planned:
            # Fingerprint first: an input that changes while it is listed is noticed later.
            inputs = ledger.stored_inputs(stage.inputs())
            store_plan(ledger, stage, inputs, list(stage.units()))
        plan = FolderPlan(ledger.read_units())
    if isinstance(stage, WholeStage):
        make_shared_files(ledger, stage.shared_files(plan.units), plan.units)
    return plan


def _plan_anew(
    ledger: Ledger, stage: Stage, find_others: FindOthers, refusal: StaleError
) -> FolderPlan:
    inputs, record = ledger.stored_inputs(stage.inputs()), ledger.read_stage()
    # By name where the listing shows none, because it may be old.
    is_touched = bool(ledger.receipt_names()) or any(
        ledger.receipt_path(unit.name).exists() for unit in _old_units(ledger)
    )
    is_ours = record is not None and record.digest == stage_digest(stage)
    if is_touched and not (is_ours and can_keep_receipts(ledger, stage, inputs)):
        raise refusal
    if ledger.manifest_path.exists():
        raise refusal
    # Listed before the old plan goes: an input that cannot be listed leaves it as it was.
    units = list(stage.units())
    changed = set(_changed_units(ledger, stage, units, ledger.read_inputs(), inputs))
    withdraw_plan(ledger, find_others, refusal)
    num_kept = store_plan(ledger, stage, inputs, units, changed)
    return FolderPlan(ledger.read_units(), num_kept if is_touched else None)


def store_plan(
    ledger: Ledger,
    stage: Stage,
    inputs: Mapping[str, Any],
    units: Sequence[Unit],
    changed: Collection[str] = (),
) -> int:
    """Store that these units of a stage are what is to be done; the folder is not complete now.

    Returns how many of them were done already, for an earlier plan. `changed` are the names of
    those that were made from other content.
    """
    _check_units(units)
    record = stage_record(stage)
    ledger.forget([])  # the manifest goes first: nobody may read half of one plan, half of another
    num_kept = 0
    if ledger.read_stage() is not None:
        ledger.withdraw_inputs()
        num_kept = remove_outdated(ledger, units, record.digest, changed)
    ledger.write_plan(record, inputs, units)
    return num_kept


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
    old, new = ledger.read_inputs(), ledger.stored_inputs(stage.inputs())
    changes = _input_changes(old, new, ledger.home)
    if not changes:
        return True
    units = _same_content(ledger, stage, old, new)
    if units is None:
        raise StaleError(_refusal(ledger, "inputs", changes))
    # Where only reading is allowed, the content decides each time.
    with suppress(OSError):
        ledger.move_plan(stage_record(stage), new, units)
    return True


def _same_content(
    ledger: Ledger, stage: Stage, old: Mapping[str, Any] | None, new: Mapping[str, Any]
) -> list[Unit] | None:
    """Return the units, with the places of now, if what they read is what it was; else None.

    Where fingerprints hold checksums, these decide. Sizes and times only say which files to look
    at: units that are listed again hold the checksums of what is done, or receipts do.
    """
    if old is None:
        return None
    gone, come = _differing(old, new)
    if any(map(_has_time, (*gone, *come))):
        if not tells_content(stage, new):
            return None
    elif sorted(map(dump_line, gone)) != sorted(map(dump_line, come)):
        return None
    units = list(stage.units())
    if [unit.digest for unit in units] != [unit.digest for unit in ledger.read_units()]:
        return None
    return None if any(_changed_units(ledger, stage, units, old, new)) else units


def _changed_units(
    ledger: Ledger,
    stage: Stage,
    units: Sequence[Unit],
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any],
) -> Iterator[str]:
    """Yield the names of units that are done and whose raw files hold something else now.

    Only those are read whose fingerprint is another one, or unknown. Where that is a time, and
    neither a unit nor its receipt has a checksum, nobody can tell, and it counts as changed.
    """
    home, old = ledger.home, old or {}
    has_times = any(_has_time(stamp) for some in _differing(old, new) for stamp in some)
    for unit, receipt in zip(units, ledger.read_receipts(units, stage_digest(stage))):
        names = [home.relative(place) for place in unit.places]
        is_touched = not names or any(n not in new or new[n] != old.get(n) for n in names)
        if receipt is None or not is_touched:
            continue
        is_told = not has_times or "xxh3" in unit.input or receipt.read
        if not is_told or receipt.read != checksum_read(stage, unit):
            yield unit.name


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the fingerprints that are only in the one, and those that are only in the other."""
    gone = [old[name] for name in old if new.get(name) != old[name]]
    return gone, [new[name] for name in new if old.get(name) != new[name]]


def _has_time(stamp: Any) -> bool:
    """Say whether a fingerprint is [size, mtime_ns] or the like, and no checksum or tag."""
    return isinstance(stamp, list) and len(stamp) == 2 and isinstance(stamp[1], int)


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
    ledger: Ledger, stage: Stage, units: Sequence[Unit], accepted: Accepted
) -> Manifest | None:
    """Write the manifest if every unit has its receipt; return it, or None.

    Raises `TooManySkips` if all units together are beyond the budget, `NothingKept` if there is
    nothing in them, `StaleError` if units read different contents of one file. Whoever sees the
    last receipt may do this, even several at once: the bytes are the same. What the listings do not
    show is looked for by name: of two parts that end together, the last one must see both.
    """
    record = stage_record(stage)
    receipts = []
    for unit, listed_receipt in zip(units, ledger.valid_receipts(units, record.digest)):
        receipt = listed_receipt or ledger.valid_receipt(unit, record.digest)
        if receipt is None:
            return None
        receipts.append(receipt)
    check_read(units, receipts)
    check_skips(ledger.out_dir, receipts, accepted.max_skip_rate)
    manifest = build_manifest(record, units, receipts)
    if not accepted.allow_empty:
        check_kept(ledger.out_dir, stage, manifest)
    # The manifest is last: where it is, the files of `finish` are too.
    if isinstance(stage, WholeStage):
        stage.finish(manifest, ledger.out_dir)
    ledger.write_manifest(manifest)
    return manifest


def check_read(units: Sequence[Unit], receipts: Sequence[Receipt]) -> None:
    """Raise `StaleError` if units that read the same files found different contents in them.

    So it is if a file was changed between two of them and got the size and time of before.
    """
    first: dict[tuple[str, ...], Receipt] = {}
    for unit, receipt in zip(units, receipts):
        other = first.setdefault(tuple(unit.places), receipt)
        if unit.places and other.read != receipt.read:
            place = unit.places[0]
            raise StaleError(
                f"{place} was changed between units {other.unit} and {receipt.unit}, and has the "
                f"size and time of before: touch {place}, and run this again, which makes anew "
                "what was made from other content"
            )


def check_skips(out_dir: Path, receipts: Sequence[Receipt], max_skip_rate: float) -> None:
    """Raise `TooManySkips` if more samples are broken than the rate allows for all of them.

    The budget of a unit stops a run early, but it is rounded up to a whole sample: units of one
    sample could lose all of them. So the sum over all receipts must keep the same rule.
    """
    num_in = sum(receipt.num_in for receipt in receipts)
    broken: Counter[str] = Counter()
    for receipt in receipts:
        broken.update(receipt.broken)
    if broken.total() > skip_budget(num_in, max_skip_rate):
        raise TooManySkips(
            f"{out_dir} is not completed: of its {num_in} samples {broken.total()} are broken, "
            f"more than the allowed rate {max_skip_rate:g}: {listed(broken)}. "
            f"They are listed in {out_dir}/rejects. Repair what they need and try them again "
            "(ingest has --retry-rejects REASON for it), or raise --max-skip-rate: what is done "
            "stays done"
        )


def check_kept(out_dir: Path, stage: Stage, manifest: Manifest) -> None:
    """Raise `NothingKept` if a folder holds nothing of what it is made for."""
    # A folder of codes has a row for each sample, with images or without.
    wanted = getattr(stage, "works_on", "")
    if manifest.num_kept and (not wanted or manifest.stats.get(wanted)):
        return
    samples = humanize.plural(manifest.num_in, "sample")
    if manifest.num_kept:
        others = f", {listed(manifest.skipped)}, and none of the others" if manifest.skipped else ""
        problem = f"{samples} in{others or ', and none'} has {wanted}"
        if wanted == "images" and manifest.stats.get("videos"):
            problem += ", but videos: take their frames first (shardmill frames)"
    elif manifest.num_in:
        problem = f"{samples} in, {listed(manifest.skipped)}"
    else:
        problem = "--limit 0 takes none" if getattr(stage, "limit", None) == 0 else "it is empty"
    places = [humanize.place(as_path(place)) for role in stage.reads().values() for place in role]
    raise NothingKept(
        f"nothing was {'done' if manifest.num_kept else 'kept'} of {', '.join(places[:2])}: "
        f"{problem}. {humanize.place(out_dir)} is not completed"
    )


def can_keep_receipts(ledger: Ledger, stage: Stage, inputs: Iterable[str]) -> bool:
    """Say whether receipts tell what changed with the input, and what is done cannot be spoiled.

    Into a store, and into files that units share, a run that was taken for dead may still write
    what the old plan said. A web server need not tell the time of a file.
    """
    if isinstance(ledger.out_dir, UrlPath) or isinstance(stage, WholeStage):
        return False
    return tells_content(stage, inputs)


def tells_content(stage: Stage, inputs: Iterable[str]) -> bool:
    """Say whether units and receipts tell if what they read has changed."""
    if not isinstance(stage, ContentKeyed) or not stage.units_name_content():
        return False
    return not any(map(_is_web, inputs))


def withdraw_plan(ledger: Ledger, find_others: FindOthers, refusal: StaleError) -> None:
    """Make the plan no longer count; raise the refusal if somebody works on it."""
    _refuse_others(find_others(), refusal)
    inputs = ledger.read_inputs()
    ledger.withdraw_inputs()
    # Looked at again: one that began between the look and the withdrawal has seen the old plan.
    try:
        _refuse_others(find_others(), refusal)
    except StaleError:
        if inputs is not None:
            ledger.write_inputs(inputs)
        raise


def remove_outdated(
    ledger: Ledger, units: Sequence[Unit], stage_digest: str, changed: Collection[str] = ()
) -> int:
    """Remove what earlier plans left that is not part of this one; return how many units stay."""
    same = [unit for unit in units if unit.name not in changed]
    valid = [receipt for unit in same if (receipt := ledger.valid_receipt(unit, stage_digest))]
    earlier = [
        receipt
        for unit in same
        if (receipt := ledger.receipt_in(ledger.earlier_path(unit.name), unit, stage_digest))
    ]
    kept = {f"receipts/{receipt.unit}.json" for receipt in valid}
    kept |= {f"earlier/{receipt.unit}.json" for receipt in earlier}
    kept |= {entry.path for receipt in (*valid, *earlier) for entry in receipt.entries}
    for folder in ("receipts", "earlier", "shards", "rejects", "failures", "claims"):
        names = {*list_names(ledger.out_dir / folder)}
        if folder == "receipts":  # tasks believe their names, and a listing may be old
            names |= {f"{unit.name}.json" for unit in _old_units(ledger)}
        ledger.backend.remove(
            ledger.out_dir / folder / name for name in names if f"{folder}/{name}" not in kept
        )
    return len(valid)


def _old_units(ledger: Ledger) -> list[Unit]:
    try:
        return ledger.read_units()
    except (FileNotFoundError, FormatError):
        return []


def make_shared_files(ledger: Ledger, sizes: Mapping[str, int], units: Sequence[Unit]) -> None:
    """Create the files that many units write together, if missing or of another size.

    Some readers want all rows in one file. Copying finished shards into it would write every byte
    twice, so units write straight into a file that has its full size from the start. Where a unit's
    rows go is part of its input, so doing it again writes the same bytes to the same place. A new
    file holds nothing, so no receipt may vouch for a range of it: all units are done again.
    """
    if sizes and isinstance(ledger.out_dir, UrlPath):
        raise ConfigError(
            f"{', '.join(sizes)} hold the rows of all units, which an object store cannot take "
            "piece by piece: export to a local folder and copy it"
        )
    paths = {ledger.out_dir / check_name(name): size for name, size in sizes.items()}
    missing = [
        path for path, size in paths.items() if not (path.is_file() and path.stat().st_size == size)
    ]
    if not missing:
        return
    # Receipts first: after a crash in between, units are done again, never believed for a new file.
    ledger.forget([unit.name for unit in units])
    for path in missing:
        ledger.disk.unlink(path)
        with path.open("wb") as file:
            file.truncate(paths[path])
        ledger.disk.sync_file(path)
    ledger.disk.sync_dir(ledger.out_dir)


def _refuse_others(others: Collection[str], refusal: StaleError) -> None:
    if others:
        raise StaleError(
            f"{refusal}\nOther runs or tasks are at work there now. Stop them, or wait for them; "
            "then run this command alone, which keeps what did not change"
        )


def _is_web(name: str) -> bool:
    path = as_path(name) if is_remote(name) else None
    return isinstance(path, UrlPath) and path.is_web


def _check_units(units: Sequence[Unit]) -> None:
    seen = set()
    for unit in units:
        check_name(unit.name)
        if unit.name in seen:
            raise ConfigError(f"two units are named {unit.name!r}: names must differ")
        seen.add(unit.name)


def _spec_changes(record: StageRecord, stage: Stage) -> list[str]:
    plain = to_plain(stage)
    if record.digest == stage_digest(stage):
        return [*_root_changes(roots_of(record.stage), roots_of(plain))]
    changes = differences(record.stage, plain)
    if record.version != type(stage).version:
        changes.append(f"version of the stage: {record.version} -> {type(stage).version}")
    return changes or ["the stage's digest"]


def _root_changes(
    old: Mapping[str, Sequence[str]], new: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield the roots that are other ones now; one that is gone was moved to what is named now."""
    for name in sorted(old.keys() | new.keys()):
        before, now = old.get(name, ()), new.get(name, ())
        lost = [a for a in before if not any(is_same_place(a, b) for b in now)]
        come = [b for b in now if not any(is_same_place(a, b) for a in before)]
        is_moved = len(lost) == len(come) and not any(as_path(place).exists() for place in lost)
        if (lost or come) and not is_moved:
            yield f"{name}: {_listed_places(before)} -> {_listed_places(now)}"


def _listed_places(places: Sequence[str]) -> str:
    return ", ".join(humanize.place(as_path(place)) for place in places) or "nothing"


def _input_changes(old: Mapping[str, Any] | None, new: Mapping[str, Any], home: Home) -> list[str]:
    if old is None:
        return ["inputs.json is missing: the folder was being planned anew"]
    changes = [("removed", name) for name in sorted(old.keys() - new.keys())]
    changes += [("added", name) for name in sorted(new.keys() - old.keys())]
    changes += [("changed", n) for n in sorted(old.keys() & new.keys()) if old[n] != new[n]]
    # Files of the settings, such as a tokenizer's, have names and no places.
    return [
        f"{what}: {humanize.place(as_path(home.locate(name))) if '/' in name else name}"
        for what, name in changes
    ]


def _refusal(ledger: Ledger, what: str, changes: Sequence[str]) -> str:
    listed = "".join(f"\n  {line}" for line in changes[:MAX_LISTED])
    more = f"\n  and {len(changes) - MAX_LISTED} more" if len(changes) > MAX_LISTED else ""
    return (
        f"{ledger.out_dir} was begun with other {what}:{listed}{more}\n"
        f"Write to another folder, remove {ledger.out_dir}, or run with what it was begun with"
    )
