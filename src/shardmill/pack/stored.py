"""Packs on disk: a token shard in which each pack is a document and its rows are the documents.

Megatron reads such a shard as sequences with document bounds; `build_pack` of a stored pack's rows
gives the very pack that is built from the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardmill.io.tokenfile import TokenShard
from shardmill.model.tokenrow import TokenRow


def as_pack(rows: Sequence[TokenRow]) -> list[TokenRow]:
    """Return rows that are stored as one pack: all but the first go on with the one before."""
    return [replace(row, continues=number > 0) for number, row in enumerate(rows)]


def num_stored_packs(shard: TokenShard) -> int:
    """Return how many packs a shard holds."""
    return len(shard.documents) - 1


def stored_rows(shard: TokenShard, pack: int) -> list[TokenRow]:
    """Return the rows of one pack, without the mark that they were stored together."""
    if not 0 <= pack < num_stored_packs(shard):
        raise IndexError(f"the shard has packs 0..{num_stored_packs(shard) - 1}, not {pack}")
    bounds = shard.documents[pack : pack + 2].tolist()
    return [replace(shard[row], continues=False) for row in range(*bounds)]
