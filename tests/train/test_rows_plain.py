"""Plain batches: one document a row, neighbours of like length, everything once."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from packed_folder import Made

from shardmill.train.collate import Collate
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import TokenReader
from shardmill.train.loader import StepLoader
from shardmill.train.rows import plan_single


def test_batches_of_like_length_waste_little(made: Made) -> None:
    plan = plan_single(made.table, block=32)
    packs = PackedDataset(plan, TokenReader.open(made.tokens))
    assert len(packs) == len(made.rows)
    loader = StepLoader(packs, packs.sampler(micro_batch=16, remainder="pad"), collate_fn=Collate())
    real = total = 0
    for batch in loader:
        mask = batch["attention_mask"]
        assert int(mask.max()) == 1
        real += int(mask.sum())
        total += mask.numel()
    assert real == sum(len(row.ids) for row in made.rows)
    shuffled = torch.from_numpy(made.table.num_tokens[:496].reshape(-1, 16).copy())
    blind = int(shuffled.sum()) / int(shuffled.max(dim=1).values.sum() * 16)
    assert real / total > 0.9 > blind
