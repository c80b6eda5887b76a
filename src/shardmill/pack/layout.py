"""The geometry of a pack: everything that follows from the lengths of its documents.

Documents stand one after another, each rounded up to the alignment; what is left up to `size` is
padding. With lengths 3 and 2, alignment 4 and size 10:

    places         0 1 2   4 5
    index mask     1 1 1 1 2 2 2 2 0 0     padding inside a document belongs to it
    position ids   0 1 2 3 0 1 2 3 0 0     and its positions go on
    cu_seqlens     0 3 5                   padded: 0 4 8
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where each document of a pack lies; make one with `lay_out`."""

    lengths: NDArray[np.int64]
    padded: NDArray[np.int64]
    size: int

    @property
    def starts(self) -> NDArray[np.int64]:
        """The place of each document's first token."""
        return np.cumsum(self.padded) - self.padded

    @property
    def num_tokens(self) -> int:
        """The tokens of all documents, without any padding."""
        return int(self.lengths.sum())

    @property
    def max_seqlen(self) -> int:
        """The longest document, with the padding inside it."""
        return int(self.padded.max(initial=0))

    def cu_seqlens(self) -> NDArray[np.int32]:
        """Return 0 and the sum of lengths after each document."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)

    def cu_seqlens_padded(self) -> NDArray[np.int32]:
        """Return 0 and the place after each document, padding included."""
        return np.concatenate([[0], np.cumsum(self.padded)]).astype(np.int32)

    def index_mask(self) -> NDArray[np.int64]:
        """Return the number of the document at each place, from 1; 0 is padding."""
        mask = np.zeros(self.size, np.int64)
        filled = int(self.padded.sum())
        mask[:filled] = np.repeat(np.arange(1, len(self.padded) + 1), self.padded)
        return mask

    def position_ids(self) -> NDArray[np.int64]:
        """Return positions that restart at 0 with each document; 0 in the padding at the end."""
        positions = np.zeros(self.size, np.int64)
        filled = int(self.padded.sum())
        positions[:filled] = np.arange(filled) - np.repeat(self.starts, self.padded)
        return positions

    def place(self, parts: Sequence[NDArray[Any]], fill: int, dtype: Any) -> NDArray[Any]:
        """Return one row with the values of each document in place and `fill` in all padding.

        Each part ends with the axis of tokens: parts of shape (3, n) give (3, size).
        """
        whole = np.concatenate(parts, axis=-1) if parts else np.empty(0, dtype)
        if whole.shape[-1] == self.size:
            return whole.astype(dtype)
        row = np.full((*whole.shape[:-1], self.size), fill, dtype)
        row[..., self._places()] = whole
        return row

    def _places(self) -> NDArray[np.int64] | slice:
        if np.array_equal(self.lengths, self.padded):
            return slice(0, self.num_tokens)
        gaps = self.starts - (np.cumsum(self.lengths) - self.lengths)
        return np.asarray(np.arange(self.num_tokens) + np.repeat(gaps, self.lengths))


def lay_out(
    lengths: NDArray[np.int64] | Sequence[int], *, alignment: int = 1, size: int | None = None
) -> Layout:
    """Return the layout of documents of these lengths, padded to `size` if it is given."""
    found = np.asarray(lengths, np.int64)
    padded = -(-found // alignment) * alignment
    needed = int(padded.sum())
    if size is not None and needed > size:
        raise ConfigError(f"the documents take {needed} tokens, more than the {size} of a pack")
    return Layout(found, padded, needed if size is None else size)


def block_causal_mask(index_mask: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the (1, S, S) mask: a token sees itself and what is before it in its document."""
    same = index_mask[:, None] == index_mask[None, :]
    return np.tril(same & (index_mask > 0)[None, :])[None]
