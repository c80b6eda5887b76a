"""What the dead leave behind is removed; what the living have is not."""

from __future__ import annotations

import os
from pathlib import Path

from other_tasks import write_lock

from shardmill.run.lock import myself
from shardmill.run.setup import remove_claims, remove_dead_drafts
from shardmill.shards.ledger import Ledger


def make_folder(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "out", "me")
    ledger.make_folders()
    for token in ("me", "alive", "dead", "gone"):
        (ledger.drafts_dir / token / "unit-1").mkdir(parents=True)
    locks_dir = ledger.out_dir / "locks"
    for token in ("me", "alive"):
        write_lock(locks_dir, token, beat=1, place=myself(token).place)
    write_lock(locks_dir, "dead", beat=1)
    os.utime(locks_dir / "task-dead.json", (0, 0))
    return ledger


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_drafts_without_a_lock_are_removed(tmp_path: Path) -> None:
    ledger = make_folder(tmp_path)
    assert remove_dead_drafts(ledger) == {"alive", "dead"}
    assert names(ledger.drafts_dir) == ["alive", "dead", "me"]


def test_a_complete_folder_keeps_nothing_of_tasks_that_are_dead(tmp_path: Path) -> None:
    ledger = make_folder(tmp_path)
    remove_claims(ledger)
    assert "dead" in names(ledger.drafts_dir), "without claims there were no tasks"
    (ledger.out_dir / "claims").mkdir()
    remove_claims(ledger)
    assert names(ledger.out_dir / "locks") == ["task-alive.json", "task-me.json"]
    assert names(ledger.drafts_dir) == ["alive", "me"]
    assert not (ledger.out_dir / "claims").exists()
