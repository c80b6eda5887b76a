"""Fingerprints depend on what a sample holds, and on nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mixed_folder import Mixed, make_mixed

from shardmill.run.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.tar.index import hash_keys
from shardmill.stages.diff import fingerprint_shard, join_fingerprints, key_of_row, mix_of_shard
from shardmill.stages.index import IndexTars


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    return make_mixed(tmp_path_factory.mktemp("mixed"), 8)


@pytest.mark.parametrize("name", ["samples", "codes", "tokens"])
def test_rows_have_the_hash_of_their_key_and_a_content(mixed: Mixed, name: str) -> None:
    folder = getattr(mixed, name)
    shards = open_manifest(folder).shards
    joined = join_fingerprints([fingerprint_shard(folder, shard) for shard in shards])
    keys = [row.key for row in mixed.rows]
    assert joined.keys.tolist() == hash_keys([key.encode() for key in keys]).tolist()
    assert key_of_row(folder, shards[1], 1) == keys[7]
    if name != "codes":  # of which several samples have none
        assert len(np.unique(joined.content, axis=0)) == len(keys)


def test_the_mix_is_read_from_indexes(mixed: Mixed) -> None:
    (first, *_) = open_manifest(mixed.tokens).shards
    mix = mix_of_shard(mixed.tokens, first)
    assert mix["source0", "samples"] == 3
    assert mix["source1", "tokens"] == sum(len(row.ids) for row in mixed.rows[1:6:2])


def test_tars_that_were_only_indexed_have_sizes_for_content(mixed: Mixed, tmp_path: Path) -> None:
    stage = IndexTars(tars=(str(mixed.samples / "shards"),))
    run_stage(stage, tmp_path / "index", workers=0)
    (first, *_) = open_manifest(tmp_path / "index").shards
    assert fingerprint_shard(tmp_path / "index", first).content.any(axis=1).all()
