"""Rows by number are tensors of their own."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from packed_folder import Made

from shardmill.train.rows import TokenRows


def test_rows_are_copies_of_the_ids(made: Made) -> None:
    rows = pickle.loads(pickle.dumps(TokenRows.open(made.tokens)))
    assert len(rows) == 500
    for number in (0, 63, 64, 499):
        assert rows[number].dtype == torch.int32
        assert np.array_equal(rows[number].numpy(), made.rows[number].ids)
    rows[0][:] = 0
    assert np.array_equal(rows[0].numpy(), made.rows[0].ids)
    assert TokenRows.open(made.tokens, torch.int64)[3].dtype == torch.int64
    for outside in (-1, 500):
        with pytest.raises(IndexError):
            rows[outside]
