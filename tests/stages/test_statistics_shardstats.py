"""Statistics from an index are those that were counted sample by sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis.strategies import integers, lists
from mixed_folder import make_mixed

from shardmill.model.stage import Tally
from shardmill.shards.ledger import open_manifest
from shardmill.stages.statistics import _observe, count_shard
from shardmill.stages.tokenize import count_row


@given(lists(integers(0, 1 << 40), min_size=1, max_size=20))
def test_many_values_are_observed_as_one_by_one(values: list[int]) -> None:
    one_by_one, at_once = Tally(), Tally()
    for value in values:
        one_by_one.observe("x", value)
    _observe(at_once, "x", np.array(values))
    assert at_once.stats == one_by_one.stats


def test_tokens_and_codes_are_counted_as_their_stages_do(tmp_path: Path) -> None:
    mixed = make_mixed(tmp_path, 8)
    found, wanted = Tally(), Tally()
    for shard in open_manifest(mixed.tokens).shards:
        count_shard(found, {role: mixed.tokens / e.path for role, e in shard.files.items()})
    for row in mixed.rows:
        count_row(wanted, row)
    assert found.stats == wanted.stats
    codes = Tally()
    for shard in open_manifest(mixed.codes).shards:
        count_shard(codes, {role: mixed.codes / e.path for role, e in shard.files.items()})
    assert codes.stats == {"images": 6, "codes": 6 * 1024, "code grid|32x32": 6}
