"""Receipts set aside: the unit is pending, its files stay known while they are what they were."""

from __future__ import annotations

from pathlib import Path

from shardmill.model.stage import Draft, Tally, Unit
from shardmill.shards.commit import commit, seal
from shardmill.shards.ledger import Ledger, earlier_files, set_aside

UNIT = Unit(name="u", input={"n": 1})


def finish(ledger: Ledger, content: str) -> None:
    draft, tally = Draft(ledger.draft_dir / "work"), Tally()
    draft.dir.mkdir(exist_ok=True)
    draft.file("u", "txt").write_text(content)
    with tally.sample("k"):
        pass
    draft.finish("u", num_samples=1)
    commit(ledger, [seal(ledger, UNIT, "stage", draft, tally)], "stage")


def make_ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    ledger.make_drafts()
    finish(ledger, "first")
    return ledger


def test_a_unit_set_aside_is_pending_and_its_files_are_known(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path)
    receipt = ledger.valid_receipt(UNIT, "stage")
    assert receipt is not None and earlier_files(ledger, UNIT, "stage") == ()
    set_aside(ledger, [receipt])
    assert ledger.pending([UNIT], "stage") == [UNIT]
    assert earlier_files(ledger, UNIT, "stage") == ({"txt": ledger.out_dir / "shards" / "u.txt"},)
    assert earlier_files(ledger, UNIT, "another stage") == ()
    assert earlier_files(ledger, Unit(name="u", input={"n": 2}), "stage") == ()
    finish(ledger, "second")
    assert ledger.pending([UNIT], "stage") == [] and earlier_files(ledger, UNIT, "stage") == ()
    assert list((ledger.out_dir / "earlier").iterdir()) == []


def test_files_of_another_size_are_not_those_of_the_receipt(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path)
    receipt = ledger.valid_receipt(UNIT, "stage")
    assert receipt is not None
    set_aside(ledger, [receipt])
    (ledger.out_dir / "shards" / "u.txt").write_text("longer than it was")
    assert earlier_files(ledger, UNIT, "stage") == ()
