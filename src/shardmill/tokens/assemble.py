"""Pieces of a template to token rows.

`prepare` lays out the media of a sample, `assemble` encodes the texts of a batch of samples in one
call and puts their rows together. A row that is too long is then handled by a policy (`fit`, see
`model.tokenrow`) or becomes blocks (`split_blocks`); media are never cut. A user's own function may
have the last word on each row (`load_hook`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError, UnitFailed
from shardmill.model.codec import load_named
from shardmill.model.sample import Sample
from shardmill.model.tokenrow import (
    MediaSpan,
    Overlong,
    TokenRow,
    block_key,
    cut_row,
    mask_of,
    spans_of,
)
from shardmill.tokens.layout import MediaBlock
from shardmill.tokens.templates.template import Medium, Piece, Text, Token
from shardmill.tokens.text.tokenizer import TextTokenizer, check_text, encode_texts, tokenizing

LayOut: TypeAlias = Callable[[Medium], MediaBlock]
Hook: TypeAlias = Callable[[TokenRow, Sample], TokenRow]


@dataclass(frozen=True, slots=True, eq=False)
class AssembledRow:
    """A row, and the (start, length) of its texts: what may be cut if the row is too long."""

    row: TokenRow
    texts: list[tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSample:
    """A sample whose pieces are known and whose media are laid out; its text is still text."""

    sample: Sample
    pieces: list[Piece]
    blocks: list[MediaBlock]


def prepare(sample: Sample, pieces: list[Piece], lay_out: LayOut) -> PreparedSample:
    """Lay out the media and check the text; whatever is wrong with the sample is found here."""
    blocks: list[MediaBlock] = []
    for piece in pieces:
        if isinstance(piece, Medium):
            blocks.append(lay_out(piece))
        elif isinstance(piece, Text):
            for content, _ in piece.parts:
                check_text(content)
    return PreparedSample(sample, pieces, blocks)


def assemble(batch: Sequence[PreparedSample], tokenizer: TextTokenizer) -> list[AssembledRow]:
    """Return the rows of a batch; encoding many texts at once is what makes tokenizers fast.

    A text that the tokenizer cannot take is a `SampleError`: of which sample, smaller batches tell.
    """
    texts = [t for item in batch for p in item.pieces if isinstance(p, Text) for t in _texts(p)]
    encoded = iter(encode_texts(tokenizer, texts))
    rows = []
    for prepared in batch:
        row, blocks = _Row(), iter(prepared.blocks)
        for piece in prepared.pieces:
            if isinstance(piece, Text):
                ids = next(encoded)
                row.add_text(ids, _part_ends(piece, ids, encoded, tokenizer))
            elif isinstance(piece, Token):
                row.add(np.array([piece.id]), piece.loss)
            else:
                row.add_medium(piece, next(blocks))
        rows.append(row.finish(prepared.sample))
    return rows


@dataclass(slots=True)
class _Row:
    """A row being put together."""

    arrays: list[NDArray[Any]] = field(default_factory=list)
    length: int = 0
    loss: list[list[int]] = field(default_factory=list)
    texts: list[tuple[int, int]] = field(default_factory=list)
    media: list[MediaSpan] = field(default_factory=list)

    def add(self, ids: NDArray[Any], loss: bool) -> None:
        """Append ids that are all learned or all not."""
        if not len(ids):
            return
        self.arrays.append(ids)
        self._learn(loss, len(ids))

    def add_text(self, ids: NDArray[Any], part_ends: list[tuple[int, bool]]) -> None:
        """Append encoded text whose parts end at these tokens."""
        self.texts.append((self.length, len(ids)))
        self.arrays.append(ids)
        done = 0
        for end, loss in part_ends:
            self._learn(loss, end - done)
            done = end

    def add_medium(self, piece: Medium, block: MediaBlock) -> None:
        """Append the block of a medium."""
        before = block.before[:0] if piece.bare else block.before
        after = block.after[:0] if piece.bare else block.after
        self.add(before, piece.loss_on_start)
        self.media.append(
            MediaSpan(
                name=piece.segment.media,
                kind=piece.segment.kind,
                position=self.length,
                num_tokens=len(block.body),
                grid=block.grid,
                before=len(before),
                after=len(after),
            )
        )
        self.add(block.body, piece.loss and block.can_be_learned)
        self.add(after, piece.loss)

    def finish(self, sample: Sample) -> AssembledRow:
        """Return the row."""
        row = TokenRow(
            key=sample.key,
            ids=np.concatenate([a.astype(np.int64, copy=False) for a in self.arrays])
            if self.arrays
            else np.empty(0, np.int64),
            loss=np.array(self.loss, np.int64).reshape(-1, 2),
            media=tuple(self.media),
            origin=sample.origin,
        )
        return AssembledRow(row, self.texts)

    def _learn(self, loss: bool, count: int) -> None:
        if loss and count:
            # A span [start, length] that ends here grows, so that neighbours are one span.
            if self.loss and sum(self.loss[-1]) == self.length:
                self.loss[-1][1] += count
            else:
                self.loss.append([self.length, count])
        self.length += count


def _texts(piece: Text) -> list[str]:
    """Return what must be encoded for a piece: all of it, and what stands left of each boundary."""
    parts = [content for content, _ in piece.parts]
    if not _mixed(piece):
        return ["".join(parts)]
    *lefts, whole = accumulate(parts)
    return [whole, *lefts]


def _mixed(piece: Text) -> bool:
    return len({loss for _, loss in piece.parts}) > 1


def _part_ends(
    piece: Text, ids: NDArray[Any], lefts: Iterator[NDArray[Any]], tokenizer: TextTokenizer
) -> list[tuple[int, bool]]:
    """Return where each part of a text ends among its ids.

    If the ids of the text left of a boundary are a prefix of all ids, then no token reaches over
    it; otherwise the reference says which one does, and it is learned if either side is.
    """
    if not _mixed(piece):
        return [(len(ids), any(loss for _, loss in piece.parts))]
    ends: list[tuple[int, bool]] = []
    position = 0
    for (content, loss), (_, next_loss) in pairwise(piece.parts):
        position += len(content)
        left = next(lefts)
        if np.array_equal(left, ids[: len(left)]):
            end = len(left)
        else:
            text = "".join(content for content, _ in piece.parts)
            with tokenizing():
                starts = tokenizer.starts(text)
            end = _token_at(position, starts, starts_learning=next_loss)
        ends.append((max(end, ends[-1][0] if ends else 0), loss))
    return [*ends, (len(ids), piece.parts[-1][1])]


def _token_at(position: int, starts: list[int], *, starts_learning: bool) -> int:
    # The first token that begins at or after the boundary. If it begins after, the one before
    # reaches over: it belongs to what follows if that is learned.
    after = next((n for n, start in enumerate(starts) if start >= position), len(starts))
    straddles = after == len(starts) or starts[after] > position
    return after - 1 if straddles and starts_learning and after > 0 else after


def fit(assembled: AssembledRow, max_length: int | None, overlong: Overlong) -> TokenRow:
    """Return the row if it has at most `max_length` tokens, else what the policy says."""
    row = assembled.row
    if max_length is None or len(row.ids) <= max_length:
        return row
    found = f"{len(row.ids)} tokens, at most {max_length} are allowed"
    if overlong == "fail":
        raise UnitFailed(
            f"sample {row.key} has {found}: raise --max-length, or say --overlong drop or cut"
        )
    if overlong == "drop":
        raise SampleError("too long", f"{found} by --max-length")
    # Control tokens hold a chat together, so that only the texts between them may go.
    is_fixed = np.ones(len(row.ids), np.bool_)
    for start, length in assembled.texts:
        is_fixed[start : start + length] = False
    return cut_row(row, max_length, is_fixed)


def split_blocks(row: TokenRow, block_size: int) -> list[TokenRow]:
    """Return rows of at most `block_size` tokens that hold every token once, in order.

    The first keeps the key, the others add ~+1, ~+2. A block ends before an image that does not
    fit into what is left of it.
    """
    bounds = [0]
    while bounds[-1] < len(row.ids):
        bounds.append(_block_end(row, bounds[-1], block_size))
    if len(bounds) <= 2:
        return [row]
    mask = mask_of(row.loss, len(row.ids))
    return [
        replace(
            row,
            key=block_key(row.key, number),
            ids=row.ids[start:end],
            loss=spans_of(mask[start:end]),
            media=tuple(
                replace(span, position=span.position - start)
                for span in row.media
                if start <= span.start and span.end <= end
            ),
            continues=number > 0,
        )
        for number, (start, end) in enumerate(pairwise(bounds))
    ]


def _block_end(row: TokenRow, start: int, block_size: int) -> int:
    end = min(start + block_size, len(row.ids))
    for span in row.media:
        if span.start < end < span.end:
            end = span.start
    if end == start:
        raise SampleError("image longer than a block", f"at token {start} of {row.key}")
    return end


def load_hook(path: str) -> Hook:
    """Return the function that 'package.module:function' names: row and sample in, row out.

    It may raise `SampleError` to leave a sample out.
    """
    found = load_named(path)
    if not callable(found):
        raise ConfigError(f"the hook {path!r} is not a function")

    def checked(row: TokenRow, sample: Sample) -> TokenRow:
        changed = found(row, sample)
        if not isinstance(changed, TokenRow):
            raise UnitFailed(f"the hook {path!r} returned {type(changed).__name__}, not a TokenRow")
        return changed

    return cast(Hook, checked)
