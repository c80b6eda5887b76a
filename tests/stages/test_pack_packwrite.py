"""The two forms of packs on disk hold every token and the bounds of every document."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
from token_folder import SPACE

from shardmill.model.stage import Draft, Tally, Unit
from shardmill.model.tokenrow import TokenRow
from shardmill.pack.build import num_stored_packs, stored_rows
from shardmill.shards.tokens.shard import open_token_shard
from shardmill.stages.pack import NumberedPacks, tar_writer, write_tokens

UNIT = Unit(name="00007", input={}, num_samples=2)


def packs() -> NumberedPacks:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(n + 2), loss=np.array([[1, n]])) for n in (1, 2, 3)]
    return NumberedPacks(40, iter([rows[:2], rows[2:]]))


def test_packs_are_numbered_by_their_position() -> None:
    assert [key for key, _ in packs()] == ["000000040", "000000041"]


def test_token_shard_counts_documents_and_packs(tmp_path: Path) -> None:
    draft, tally = Draft(tmp_path), Tally()
    write_tokens(packs(), SPACE, UNIT, draft, tally)
    tally.check(draft, max_skip_rate=0)
    shard = open_token_shard({r: tmp_path / f"00007.{r}" for r in ("bin", "idx", "spans")})
    assert num_stored_packs(shard) == tally.stats["packs"] == 2
    assert [row.ids.tolist() for row in stored_rows(shard, 0)] == [[0, 1, 2], [0, 1, 2, 3]]


def test_tar_counts_packs(tmp_path: Path) -> None:
    draft, tally = Draft(tmp_path), Tally()
    tar_writer(None)(packs(), SPACE, UNIT, draft, tally)
    tally.check(draft, max_skip_rate=0)
    assert tally.num_kept == 2
    with tarfile.open(tmp_path / "00007.tar") as tar:
        assert tar.getnames() == ["000000040.json", "000000041.json"]
        content = json.loads(tar.extractfile("000000040.json").read())  # type: ignore[union-attr]
    assert content["input_ids"] == [0, 1, 2, 0, 1, 2, 3]
    assert content["loss_mask"] == [0, 1, 0, 0, 1, 1, 0]
    assert (content["lengths"], content["keys"], content["image"]) == ([3, 4], ["k1", "k2"], [])
