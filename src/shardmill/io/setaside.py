"""Receipts of units whose rejects are tried again: set aside, for what these units did right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardmill.io.jsontext import dump_page
from shardmill.io.receipts import Ledger
from shardmill.model.manifest import Receipt, receipt_to_plain
from shardmill.model.stage import Unit


def set_aside(ledger: Ledger, receipts: Sequence[Receipt]) -> None:
    """Make units pending again, and keep their receipts in earlier/."""
    for receipt in receipts:
        ledger.depot.put(ledger.earlier_path(receipt.unit), dump_page(receipt_to_plain(receipt)))
    ledger.forget([receipt.unit for receipt in receipts])


def earlier_files(ledger: Ledger, unit: Unit, stage_digest: str) -> tuple[dict[str, Path], ...]:
    """Return the files by role of the shards of which a receipt set aside speaks."""
    receipt = ledger.receipt_in(ledger.earlier_path(unit.name), unit, stage_digest)
    return tuple(
        {role: ledger.out_dir / entry.path for role, entry in shard.files.items()}
        for shard in (receipt.shards if receipt is not None else ())
    )
