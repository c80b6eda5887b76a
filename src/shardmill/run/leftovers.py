"""What runs and tasks leave behind when they are killed, and when it may be removed."""

from __future__ import annotations

import shutil
from contextlib import suppress

from shardmill.io.receipts import Ledger
from shardmill.remote.path import UrlPath
from shardmill.run.holder import read_locks


def remove_dead_drafts(ledger: Ledger) -> set[str]:
    """Clean up after runs that were killed, and return the tokens of the others that live.

    This is also a fence: a run that was only suspended, and wakes up after it was taken over, finds
    its drafts gone and can commit nothing.
    """
    # Every run makes its lock before its drafts: whoever has a draft here but no lock is dead.
    # The drafts are listed first, so that a run which starts meanwhile is not in the list.
    drafts = list(ledger.drafts_dir.iterdir())
    alive = {lock.holder.token for lock in read_locks(ledger.out_dir / "locks")}
    for draft_dir in drafts:
        if draft_dir.name not in alive:
            shutil.rmtree(draft_dir, ignore_errors=True)
    return alive - {ledger.token}


def remove_claims(ledger: Ledger) -> None:
    """Remove the claims of a complete folder, and what tasks left there that seem to be dead."""
    claims_dir = ledger.out_dir / "claims"
    if not claims_dir.exists():
        return
    # Several tasks may see the last receipt, and do this at the same time.
    with suppress(FileNotFoundError):
        ledger.depot.drop(list(claims_dir.iterdir()))
    if not isinstance(claims_dir, UrlPath):
        shutil.rmtree(claims_dir, ignore_errors=True)
    for lock in read_locks(ledger.out_dir / "locks"):
        if lock.name.startswith("task-") and not lock.alive:
            (ledger.out_dir / "locks" / f"{lock.name}.json").unlink(missing_ok=True)
    remove_dead_drafts(ledger)
