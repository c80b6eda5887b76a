"""Why a folder is not a finished dataset, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardmill.io.receipts import Ledger


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
