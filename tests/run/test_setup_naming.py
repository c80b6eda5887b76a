"""Refusals of the system name the folder, and only if they are about it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from shardmill.errors import ShardmillError
from shardmill.run.setup import naming
from shardmill.shards.ledger import Ledger


@pytest.mark.parametrize(
    ("number", "name", "ours"),
    [
        (errno.EACCES, "out/receipts/x", True),
        (errno.ENOSPC, "elsewhere", True),
        (errno.EACCES, "elsewhere", False),
    ],
)
def test_what_is_ours_is_named(tmp_path: Path, number: int, name: str, ours: bool) -> None:
    error = OSError(number, "it will not do", str(tmp_path / name))
    kind = ShardmillError if ours else OSError
    with pytest.raises(kind, match="will not do") as caught, naming(Ledger(tmp_path / "out")):
        raise error
    assert ("cannot write to" in str(caught.value)) == ours
