"""Rows that a reader sees: of packs one each, with the numbers of its documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from token_folder import write_token_folder

from shardmill.formats.format import open_input
from shardmill.formats.rows import is_packed, token_rows
from shardmill.formats.unidisc.fixedlength import FixedLength
from shardmill.model.plan import PackSpec
from shardmill.model.stage import Tally
from shardmill.model.tokenrow import TokenRow
from shardmill.pack.plan import plan_packs
from shardmill.run.runner import run_stage
from shardmill.shards.lengths import token_lengths
from shardmill.shards.plans import write_plan
from shardmill.stages.pack import Materialize


def test_packs_are_rows_and_their_documents_are_counted(tmp_path: Path) -> None:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(3 + n % 5)) for n in range(20)]
    tokens = write_token_folder(tmp_path / "tokens", [rows])
    assert not is_packed(open_input(tokens))
    write_plan(tmp_path / "plan", plan_packs(token_lengths(tokens), PackSpec(capacity=16)))
    packing = Materialize(tokens_dir=tokens, plan_path=tmp_path / "plan", packs_per_shard=3)
    assert run_stage(packing, tmp_path / "packs", workers=0).complete
    source, tally, num_documents = open_input(tmp_path / "packs"), Tally(), 0
    assert is_packed(source)
    for slices in source.ranges(None):
        for part in token_rows(source, slices, max_rows=7):
            assert part.members is not None and part.documents is not None
            assert int(part.lengths.max()) <= 16 and len(part.keys[0]) > 1
            for start, end in zip(part.bounds[:-1].tolist(), part.bounds[1:].tolist()):
                numbers = part.documents[start:end]
                assert numbers[0] == 0 and set(np.diff(numbers).tolist()) <= {0, 1}
                num_documents += int(numbers[-1]) + 1
            kept = np.arange(len(part)) > 0
            part.account(FixedLength(width=9), kept, tally)
    assert num_documents == 20 == tally.num_in
    assert set(tally.skipped) == {"longer than a row"} and len(tally.rejects) >= 3
