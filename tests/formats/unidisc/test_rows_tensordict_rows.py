"""Rows in tensors: the plan and the work come to the same rows, however they are cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tensordict import TensorDict
from token_folder import write_token_folder

from shardmill.errors import Filtered
from shardmill.formats.format import ExportInput, Slice
from shardmill.formats.rows import KeysOfRows, TokenSlice, token_slices
from shardmill.formats.unidisc.fixedlength import account
from shardmill.formats.unidisc.rows import Tensor, TensorBatch, TensorRowsFormat
from shardmill.model.stage import Tally
from shardmill.model.tokenrow import TokenRow
from shardmill.run.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.stages.export import Export


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenLengths(TensorRowsFormat):
    """The lengths of the rows that have an even one."""

    def tensors(self, source: ExportInput) -> dict[str, Tensor]:
        return {"length": Tensor("int32", (1,))}

    def batches(self, source: ExportInput, slices: Sequence[Slice]) -> Iterator[TensorBatch]:
        return (EvenBatch(part) for part in token_slices(source, slices, max_rows=3))


@dataclass(frozen=True, slots=True, eq=False)
class EvenBatch:
    part: TokenSlice

    def kept(self) -> NDArray[np.bool_]:
        return self.part.lengths % 2 == 0

    def check(self) -> None:
        return None

    def account(self, tally: Tally) -> None:
        account(tally, self.kept(), KeysOfRows(self.part), lambda row: Filtered("odd"))

    def values(self) -> dict[str, NDArray[Any]]:
        return {"length": self.part.lengths[self.kept()][:, None]}


@pytest.mark.parametrize("num_shards", [None, 1, 4])
def test_rows_are_where_the_plan_says(tmp_path: Path, num_shards: int | None) -> None:
    lengths = [5, 2, 8, 1, 4, 4, 3, 6, 7, 10, 12, 1, 2]
    rows = [TokenRow(key=f"k{n}", ids=np.arange(length)) for n, length in enumerate(lengths)]
    tokens = write_token_folder(tmp_path / "tokens", [rows[:6], rows[6:]])
    stage = Export(input_dir=tokens, format=EvenLengths(), num_shards=num_shards)
    assert run_stage(stage, tmp_path / "out", workers=0).complete
    found = TensorDict.load_memmap(tmp_path / "out")
    even = [number for number, length in enumerate(lengths) if length % 2 == 0]
    assert found["idx"].squeeze(1).tolist() == even
    assert found["length"].squeeze(1).tolist() == [lengths[number] for number in even]
    assert open_manifest(tmp_path / "out").skipped == {"odd": len(lengths) - len(even)}
