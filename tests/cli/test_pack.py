"""`shardmill pack`: packs on disk, done once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from invoked import invoke_json
from token_folder import write_token_folder

from shardmill.model.tokenrow import TokenRow
from shardmill.shards.ledger import open_manifest


def test_command_writes_packs_and_is_done_the_second_time(tmp_path: Path) -> None:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(1 + n % 7)) for n in range(40)]
    tokens = write_token_folder(tmp_path / "tokens", [rows])
    planned = invoke_json("plan", tokens, tmp_path / "p", "--capacity", 16)
    for done_now in (1, 0):
        done = invoke_json("pack", tokens, tmp_path / "p", tmp_path / "out", "--workers", 0)
        assert done["run"]["num_done"] == done_now
    manifest = open_manifest(tmp_path / "out")
    assert manifest.num_samples == 40
    assert manifest.stats["packs"] == planned["num_packs"]
