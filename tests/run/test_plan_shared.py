"""Shared files: made in full size, and never believed to hold what a lost one held."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.errors import ConfigError
from shardmill.model.stage import Unit
from shardmill.run.plan import make_shared_files
from shardmill.shards.ledger import Ledger
from shardmill.storage.path import as_path

UNITS = [Unit(name=f"{n}", input={}) for n in range(3)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    for unit in UNITS:
        ledger.receipt_path(unit.name).write_text("{}")
    return ledger


def test_files_have_their_size_from_the_start(ledger: Ledger) -> None:
    make_shared_files(ledger, {"a.bin": 10, "b.bin": 0}, UNITS)
    assert (ledger.out_dir / "a.bin").read_bytes() == bytes(10)
    assert (ledger.out_dir / "b.bin").read_bytes() == b""


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_lost_file_takes_all_receipts_with_it(ledger: Ledger, damage: str) -> None:
    for name in ("a.bin", "b.bin"):
        (ledger.out_dir / name).write_bytes(b"0123456789")
    make_shared_files(ledger, {"a.bin": 10, "b.bin": 10}, UNITS)
    assert ledger.receipt_path("1").exists(), "what is there stays"
    if damage == "missing":
        (ledger.out_dir / "a.bin").unlink()
    else:
        (ledger.out_dir / "a.bin").write_bytes(b"0")
    make_shared_files(ledger, {"a.bin": 10, "b.bin": 10}, UNITS)
    assert not any(ledger.receipt_path(unit.name).exists() for unit in UNITS)
    assert (ledger.out_dir / "a.bin").read_bytes() == bytes(10)
    assert (ledger.out_dir / "b.bin").read_bytes() == b"0123456789"


def test_a_store_cannot_take_ranges() -> None:
    remote = Ledger(as_path("s3://bucket/out"), "run")
    with pytest.raises(ConfigError, match=r"a\.bin hold the rows of all units.*local folder"):
        make_shared_files(remote, {"a.bin": 10}, UNITS)
    make_shared_files(remote, {}, UNITS)
