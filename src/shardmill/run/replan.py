"""Planning a folder anew when its input was mended: what is done and did not change stays.

A receipt carries the digest of its unit, so it is never believed for another. What is left of units
that changed or vanished is removed, because tasks believe the names of receipts, and readers of
shards/ the names of files. The order, each step lasting before the next:

    1. inputs.json goes: who starts now finds no plan that counts
    2. nobody else may be at work; a task makes its lock before it looks for inputs.json
    3. receipts of other units go, then all files that no receipt speaks of
    4. units.jsonl is replaced, then inputs.json is written

A crash between any two leaves a folder that the next run plans anew, by the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from shardmill.errors import StaleError
from shardmill.io.folder import list_names
from shardmill.io.receipts import Ledger
from shardmill.model.stage import ContentKeyed, Stage, Unit, WholeStage
from shardmill.remote.path import UrlPath, as_path
from shardmill.remote.url import is_remote

FindOthers = Callable[[], Collection[str]]


def can_keep_receipts(ledger: Ledger, stage: Stage, inputs: Iterable[str]) -> bool:
    """Say whether receipts tell what changed with the input, and what is done cannot be spoiled.

    Into a store, and into files that units share, a run that was taken for dead may still write
    what the old plan said. A web server need not tell the time of a file.
    """
    if isinstance(ledger.out_dir, UrlPath) or isinstance(stage, WholeStage):
        return False
    if not isinstance(stage, ContentKeyed) or not stage.units_name_content():
        return False
    return not any(map(_is_web, inputs))


def withdraw_plan(ledger: Ledger, find_others: FindOthers, refusal: StaleError) -> None:
    """Make the plan no longer count; raise the refusal if somebody works on it."""
    _refuse_others(find_others(), refusal)
    inputs = ledger.read_inputs()
    ledger.withdraw_inputs()
    try:
        _refuse_others(find_others(), refusal)
    except StaleError:
        if inputs is not None:
            ledger.write_inputs(inputs)
        raise


def remove_outdated(ledger: Ledger, units: Sequence[Unit], stage_digest: str) -> int:
    """Remove what earlier plans left that is not part of this one; return how many units stay."""
    valid = [receipt for receipt in ledger.valid_receipts(units, stage_digest) if receipt]
    earlier = [
        receipt
        for unit in units
        if (receipt := ledger.receipt_in(ledger.earlier_path(unit.name), unit, stage_digest))
    ]
    kept = {f"receipts/{receipt.unit}.json" for receipt in valid}
    kept |= {f"earlier/{receipt.unit}.json" for receipt in earlier}
    kept |= {entry.path for receipt in (*valid, *earlier) for entry in receipt.entries}
    for folder in ("receipts", "earlier", "shards", "rejects", "failures", "claims"):
        names = list_names(ledger.out_dir / folder)
        ledger.depot.remove(
            ledger.out_dir / folder / name for name in names if f"{folder}/{name}" not in kept
        )
    return len(valid)


def _refuse_others(others: Collection[str], refusal: StaleError) -> None:
    if others:
        raise StaleError(
            f"{refusal}\nOther runs or tasks are at work there now. Stop them, or wait for them; "
            "then run this command alone, which keeps what did not change"
        )


def _is_web(name: str) -> bool:
    path = as_path(name) if is_remote(name) else None
    return isinstance(path, UrlPath) and path.is_web
