"""Tries the rejects of a finished folder again: downloads that failed then may succeed now.

The units that have rejects of the given reasons become pending, but their receipts are set aside,
not thrown away: when such a unit is done again, the samples that it has already are taken from its
own shards, and only the others are fetched. The result is that of a run in which they had never
failed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from shardmill.io.receipts import Ledger
from shardmill.io.setaside import set_aside
from shardmill.model.manifest import Receipt, stage_digest
from shardmill.model.stage import Stage
from shardmill.remote.path import as_path
from shardmill.run.lock import FolderLock, LockTiming, part_lock_name
from shardmill.run.plan import check_fresh, check_spec


def retry_rejects(
    out: Path | str, stage: Stage, reasons: Sequence[str], *, timing: LockTiming | None = None
) -> int:
    """Make units pending that have rejects whose reason begins with one of these; return how many.

    Running the stage does them. A folder that was not begun, or made otherwise, is left to that.
    """
    ledger = Ledger(as_path(out).absolute(), secrets.token_hex(8))
    # The run that follows plans an unfinished folder anew if its inputs changed.
    check = check_fresh if ledger.manifest_path.exists() else check_spec
    if not check(ledger, stage):
        return 0
    ledger.make_folders()
    with FolderLock(ledger.out_dir / "locks", part_lock_name((1, 1)), ledger.token, timing=timing):
        ledger.make_drafts()
        found = ledger.read_receipts(ledger.read_units(), stage_digest(stage))
        chosen = [receipt for receipt in found if receipt and _has(receipt, tuple(reasons))]
        if chosen:
            set_aside(ledger, chosen)
        ledger.draft_dir.rmdir()
    return len(chosen)


def _has(receipt: Receipt, reasons: tuple[str, ...]) -> bool:
    return any(reason.startswith(reasons) for reason in receipt.skipped)
