"""The rows that a reader is to see: rows of token shards as they are, packs as one row each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.formats.fixedlength import FixedLength, account
from shardmill.formats.inputs import ExportInput, Slice
from shardmill.formats.tokenslice import MAX_ROWS, MAX_TOKENS, TokenSlice, token_slices
from shardmill.io.weave import Column
from shardmill.model.stage import Tally


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """Some rows as flat arrays: row i has the tokens bounds[i] to bounds[i + 1].

    Of packs `members` are the first stored row of each pack and the end, and `documents` numbers
    the documents inside each pack, token by token.
    """

    part: TokenSlice
    bounds: NDArray[np.int64]
    members: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each row."""
        return np.diff(self.bounds)

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of all rows."""
        return self.part.ids

    @property
    def num_fixed(self) -> NDArray[Any]:
        """The tokens of each row that are never cut; a pack is not cut at all."""
        if self.members is not None:
            return self.lengths
        return self.part.shard.num_fixed[self.part.start : self.part.stop].astype(np.int64)

    @property
    def keys(self) -> KeysOfRows:
        """The key of each row, looked up when it is asked for."""
        return KeysOfRows(self.part, self.members)

    @property
    def stored(self) -> NDArray[np.int64]:
        """The first stored row of each row, and the end."""
        return np.arange(len(self) + 1) if self.members is None else self.members

    def key_texts(self) -> Column:
        """Return the key of each row, as UTF-8."""
        return self.part.key_texts(None if self.members is None else self.members[:-1])

    @property
    def documents(self) -> NDArray[np.int16] | None:
        """Of packs, the number of its document in its pack, for each token."""
        if self.members is None:
            return None
        inside = np.arange(len(self.part)) - np.repeat(self.members[:-1], np.diff(self.members))
        return np.repeat(inside, self.part.lengths).astype(np.int16)

    def account(self, rule: FixedLength, kept: NDArray[np.bool_], tally: Tally) -> None:
        """Enter the stored rows into the books; those of a dropped pack go with it."""
        lengths = self.lengths
        if self.members is not None:
            counts = np.diff(self.members)
            kept, lengths = np.repeat(kept, counts), np.repeat(lengths, counts)
        keys = KeysOfRows(self.part)
        account(tally, kept, keys, lambda row: rule.explain(int(lengths[row])))


@dataclass(frozen=True, slots=True, eq=False)
class KeysOfRows:
    """Keys by row number; a pack has that of its first row."""

    part: TokenSlice
    members: NDArray[np.int64] | None = None

    def __getitem__(self, row: int) -> str:
        place = row if self.members is None else int(self.members[row])
        return self.part.shard.keys[self.part.start + place]


def is_packed(source: ExportInput) -> bool:
    """Say whether the shards hold packs, which `shardmill pack` marks."""
    if not source.shards:
        return False
    about = source.token_shard(0).spans.meta.get("about")
    return isinstance(about, dict) and bool(about.get("packs"))


def token_rows(
    source: ExportInput,
    slices: Sequence[Slice],
    max_tokens: int = MAX_TOKENS,
    max_rows: int = MAX_ROWS,
) -> Iterator[TokenRows]:
    """Yield the rows in order, about as many tokens and stored rows at a time as the limits say."""
    packed = is_packed(source)
    for part in token_slices(source, slices, max_tokens, max_rows):
        members = part.documents if packed else None
        bounds = part.bounds if members is None else part.bounds[members]
        yield TokenRows(part, bounds, members)
