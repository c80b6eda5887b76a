"""Token rows by number: for shards whose rows are whole packs, or for models without packing.

Nothing is laid out: the ids of a row are copied out of the mapped file into a tensor of their own,
which is as much as anybody can do.

Batches without packing: one document a pack, documents of like length beside each other.

A plan with one document a pack is an order of single documents in blocks of like cost, shuffled by
(seed, epoch). A batch of neighbours, padded to its longest, wastes little; resuming, splitting over
ranks and everything else is that of packs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from shardmill.model.lengths import LengthTable
from shardmill.model.plan import Overlong, PackPlan, PackSpec
from shardmill.pack.plan import plan_packs
from shardmill.shards.ledger import open_manifest
from shardmill.shards.tokens.shard import TokenDataset, open_tokens
from shardmill.storage.path import as_path


class _Mapped(NamedTuple):
    """A shard's ids, and the lookups of where its rows begin and how long they are."""

    ids: Any
    offset: Callable[[int], int]
    length: Callable[[int], int]
    itemsize: int


class TokenRows(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Row number in, ids out, as int32 or as `dtype`."""

    def __init__(self, tokens: TokenDataset, dtype: torch.dtype = torch.int32) -> None:
        self.tokens, self.dtype = tokens, dtype
        self._numpy = np.dtype(str(dtype).removeprefix("torch."))
        self._starts = np.cumsum([0, *(entry.num_samples for entry in tokens.entries)]).tolist()
        self._mapped: dict[int, _Mapped] = {}

    @classmethod
    def open(cls, folder: Path | str, dtype: torch.dtype = torch.int32) -> TokenRows:
        """Return the rows of a finished folder of token shards."""
        return cls(open_tokens(as_path(folder), open_manifest(folder)), dtype)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, number: int) -> torch.Tensor:
        shard = bisect_right(self._starts, number) - 1
        mapped = self._mapped.get(shard) or self._map(number)
        row = number - self._starts[shard]
        start, length = mapped.offset(row) // mapped.itemsize, mapped.length(row)
        ids = mapped.ids[start : start + length].astype(self._numpy)
        if len(ids) != length:
            self.tokens.ids(number)  # says what is wrong with the file
        return torch.from_numpy(ids)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": {}}

    def _map(self, number: int) -> _Mapped:
        place, _ = self.tokens.locate(number)
        shard = self.tokens.shard(place)
        offset, length = shard.offsets.item, shard.lengths.item
        found = _Mapped(shard.data, offset, length, shard.data.itemsize)
        self._mapped[place] = found
        return found


def plan_single(
    table: LengthTable,
    *,
    max_tokens: int | None = None,
    overlong: Overlong = "fail",
    block: int = 512,
    seed: int = 0,
) -> PackPlan:
    """Return the plan in which each document is a pack of its own.

    `block` documents of like length stay together: make it at least the documents of a step.
    """
    longest = int(table.num_tokens.max(initial=1))
    spec = PackSpec(
        capacity=longest if max_tokens is None else max_tokens,
        max_documents=1,
        overlong=overlong,
        headroom=0.0,
        block=block,
        method="histogram",
        seed=seed,
    )
    return plan_packs(table, spec)
