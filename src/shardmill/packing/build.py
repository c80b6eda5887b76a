"""What a pack is: its layout, how it is built from documents, and how it lies on disk.

Documents stand one after another, each rounded up to the alignment; what is left up to `size` is
padding. With lengths 3 and 2, alignment 4 and size 10:

    places         0 1 2   4 5
    index mask     1 1 1 1 2 2 2 2 0 0     padding inside a document belongs to it
    position ids   0 1 2 3 0 1 2 3 0 0     and its positions go on
    cu_seqlens     0 3 5                   padded: 0 4 8

`build_pack` is the one function for packs on disk and for training. A pack keeps tokens unshifted,
so that it can be stored; labels are shifted when they are asked for: the label of a token is the
next token of its document, if that carries loss, and the last token of a document has none.

On disk, packs are a token shard in which each pack is a Megatron document and its rows are the
sequences; `build_pack` of a stored pack's rows gives the very pack that is built from the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.tokenrow import (
    MediaSpan,
    PositionRule,
    TokenRow,
    cut_row,
    modality_of,
)
from shardmill.shards.tokens.shard import TokenShard

NO_LABEL = -100  # what torch's cross entropy ignores


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSpec:
    """How a pack is laid out: padding to `size` (None: not at all) and inside documents.

    `positions` is the visual rule of a model whose positions are not plain: by default they count
    from 0 in each document.
    """

    alignment: int = 1
    size: int | None = None
    pad_id: int = 0
    positions: PositionRule | None = None


@dataclass(frozen=True, slots=True)
class PackMedium:
    """A medium of a pack: its document, and its span counted from the start of the pack."""

    document: int
    span: MediaSpan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pack:
    """A built pack; arrays have one value a place, padding included."""

    layout: Layout
    keys: tuple[str, ...]
    samples: NDArray[np.int64]
    input_ids: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    modality: NDArray[np.uint8]
    position_ids: NDArray[np.int64]
    media: tuple[PackMedium, ...]

    def labels(self) -> NDArray[np.int64]:
        """Return the token that each place shall predict, -100 where there is none."""
        own = np.where(self.loss_mask, self.input_ids, NO_LABEL)
        # Nothing before a document's first token may predict it.
        own[self.layout.starts[self.layout.lengths > 0]] = NO_LABEL
        return np.append(own[1:], NO_LABEL)[: len(own)]

    def index_mask(self) -> NDArray[np.int64]:
        """Return 1, 2, 3 ... for the places of each document, 0 for padding."""
        return self.layout.index_mask()

    def block_causal_mask(self) -> NDArray[np.bool_]:
        """Return the (1, S, S) mask: a token sees itself and what is before it in its document."""
        index = self.index_mask()
        same = index[:, None] == index[None, :]
        return np.tril(same & (index > 0)[None, :])[None]

    def sample_ids(self) -> NDArray[np.int64]:
        """Return the number of the sample at each place, -1 for padding."""
        return np.concatenate([[-1], self.samples])[self.index_mask()]

    def grid_thw(self, kind: str) -> NDArray[np.int64]:
        """Return the grids (n, 3) of all media of one kind ("image", "video") in order."""
        grids = [medium.span.grid for medium in self.media if medium.span.kind == kind]
        return np.array(grids, np.int64).reshape(-1, 3)


def build_pack(
    rows: Sequence[TokenRow],
    spec: BuildSpec,
    *,
    samples: Sequence[int] | NDArray[Any] | None = None,
    lengths: Sequence[int] | NDArray[Any] | None = None,
    positions: Sequence[NDArray[np.int64]] | None = None,
) -> Pack:
    """Return the pack of these documents.

    `samples` are their numbers in the data set (0, 1, 2 ... by default), `lengths` the planned
    numbers of tokens: a longer row loses text from its end, a shorter one is an error, because
    planned and built length must agree. `positions` are the (axes, n) positions of each document
    where the caller knows more than `spec.positions` can.
    """
    if lengths is not None:
        rows = [cut_row(row, int(length)) for row, length in zip(rows, lengths)]
    layout = lay_out([len(row.ids) for row in rows], alignment=spec.alignment, size=spec.size)
    return Pack(
        layout=layout,
        keys=tuple(row.key for row in rows),
        samples=np.asarray(range(len(rows)) if samples is None else samples, np.int64),
        input_ids=layout.place([row.ids for row in rows], spec.pad_id, np.int64),
        loss_mask=_loss_mask(rows, layout),
        modality=layout.place([modality_of(row.media, len(row.ids)) for row in rows], 0, np.uint8),
        position_ids=_positions(rows, layout, spec.positions, positions),
        media=tuple(
            PackMedium(document, replace(span, position=span.position + int(start)))
            for document, (row, start) in enumerate(zip(rows, layout.starts))
            for span in row.media
        ),
    )


def _loss_mask(rows: Sequence[TokenRow], layout: Layout) -> NDArray[np.bool_]:
    # All spans of all documents at once: a span of 3 at place 7 becomes 7, 8, 9.
    spans = np.concatenate(
        [row.loss + [start, 0] for row, start in zip(rows, layout.starts)] or [np.empty((0, 2))]
    ).astype(np.int64)
    starts, counts = spans[:, 0], spans[:, 1]
    places = np.arange(int(counts.sum())) + np.repeat(starts - np.cumsum(counts) + counts, counts)
    mask = np.zeros(layout.size, np.bool_)
    mask[places] = True
    return mask


def _positions(
    rows: Sequence[TokenRow],
    layout: Layout,
    rule: PositionRule | None,
    given: Sequence[NDArray[np.int64]] | None,
) -> NDArray[np.int64]:
    if rule is not None and given is None:
        given = [rule.positions(row) for row in rows]
    if given is None:
        return layout.position_ids()
    parts = [_padded(part, int(length)) for part, length in zip(given, layout.padded)]
    if not parts and rule is not None:
        # An empty pack has as many axes as any other.
        parts = [rule.positions(TokenRow(key="", ids=np.empty(0, np.int64)))]
    placed = lay_out(layout.padded, size=layout.size).place(parts, 0, np.int64)
    return placed[0] if len(placed) == 1 else placed


def _padded(positions: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    # Positions of padding inside a document go on after the largest, as they do on one axis.
    axes, found = positions.shape
    if found == length:
        return positions
    after = np.arange(length - found) + int(positions.max(initial=-1)) + 1
    return np.concatenate([positions, np.broadcast_to(after, (axes, len(after)))], axis=1)


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
