"""Rows stored as one pack come back as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from token_folder import write_token_folder

from shardmill.model.tokenrow import TokenRow
from shardmill.pack.build import as_pack, num_stored_packs, stored_rows
from shardmill.shards.tokens.shard import open_tokens


def test_packs_keep_their_bounds(tmp_path: Path) -> None:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(n + 1)) for n in range(5)]
    folder = write_token_folder(tmp_path / "packs", [[*as_pack(rows[:2]), *as_pack(rows[2:])]])
    shard = open_tokens(folder).shard(0)
    assert num_stored_packs(shard) == 2
    assert [row.key for row in stored_rows(shard, 1)] == ["k2", "k3", "k4"]
    assert not any(row.continues for row in stored_rows(shard, 0))
    with pytest.raises(IndexError):
        stored_rows(shard, 2)
