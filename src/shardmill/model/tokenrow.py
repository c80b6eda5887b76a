"""A tokenized sample: ids, the spans that carry loss, and where its media lie.

Masks are spans: `loss` has a row (start, length) for each run of tokens that is trained on, in
order and not touching. Modality needs no spans of its own: a token inside a `MediaSpan` has that
medium's modality, every other token is text.

A long sample K may be cut into rows: the first is named K, the others K~+1, K~+2. No source names a
sample so, though it may be called K~2.

A row that is too long meets one policy (`Overlong`), in tokenizing and in packing:

    fail   nothing is made: someone must choose
    drop   the sample is left out, and counted under its reason
    cut    text goes from its end; media stay whole, or the sample is dropped
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.model.sample import SEGMENT_KINDS, Origin

BLOCK_MARK = "~+"
MODALITIES = {kind: number for number, kind in enumerate(SEGMENT_KINDS)}
MEDIA_COLUMNS = ("position", "length", "before", "after", "kind", "name")
Overlong: TypeAlias = Literal["fail", "drop", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpan:
    """The tokens of one medium: `num_tokens` from `position`, as a grid of (t, h, w).

    `name` is the medium's name inside its sample, `kind` is "image", "video" or "audio". The
    `before` and `after` tokens next to it are its delimiters: they stay or go with it.
    """

    name: str
    kind: str
    position: int
    num_tokens: int
    grid: tuple[int, int, int] = (0, 0, 0)
    before: int = 0
    after: int = 0

    @property
    def start(self) -> int:
        """The first token that belongs to the medium, delimiters included."""
        return self.position - self.before

    @property
    def end(self) -> int:
        """The first token after the medium and its delimiters."""
        return self.position + self.num_tokens + self.after


def block_key(key: str, number: int) -> str:
    """Return the name of the row with this number of a sample that was cut into rows."""
    return f"{key}{BLOCK_MARK}{number}" if number else key


def sample_key(row_key: str) -> str:
    """Return the key of the sample that a row was made from: that of K~+2 is K."""
    key, _, number = row_key.rpartition(BLOCK_MARK)
    return key if key and number.isdecimal() else row_key


def no_spans() -> NDArray[np.int64]:
    """Return an empty list of spans."""
    return np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRow:
    """One row of a token shard; `continues` says that it goes on with the row before it."""

    key: str
    ids: NDArray[Any]
    loss: NDArray[np.int64] = field(default_factory=no_spans)
    media: tuple[MediaSpan, ...] = ()
    origin: Origin | None = None
    continues: bool = False

    @property
    def num_visual(self) -> int:
        """The tokens inside media, without delimiters."""
        return sum(span.num_tokens for span in self.media)

    @property
    def num_fixed(self) -> int:
        """The tokens that are never cut: media with their delimiters."""
        return sum(span.end - span.start for span in self.media)

    @property
    def num_loss(self) -> int:
        """The tokens that are trained on."""
        return int(self.loss[:, 1].sum())


@dataclass(frozen=True, slots=True, eq=False)
class MediaColumns:
    """The media of many rows: how many each row has, and their columns one after the other.

    `columns` has the names of MEDIA_COLUMNS; "name" counts in `names`, "kind" as modality does.
    """

    counts: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.int64]]
    grid: NDArray[np.int64]
    names: tuple[str, ...]

    @classmethod
    def none(cls, num_rows: int) -> MediaColumns:
        """Return the columns of rows without media."""
        columns = {name: np.empty(0, np.int64) for name in MEDIA_COLUMNS}
        return cls(np.zeros(num_rows, np.int64), columns, np.empty((0, 3), np.int64), ())

    def sums(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum over the media of each row.

        With counts [2, 0, 1] the values [5, 6, 7] sum up to [0, 5, 11, 18]; the rows end at the
        places 2, 2 and 3 of that, so their sums are 11, 0 and 7.
        """
        ends = np.concatenate([[0], np.cumsum(values)])[np.cumsum(self.counts)]
        return np.diff(ends, prepend=0).astype(np.int64)


class PositionRule(Protocol):
    """How a model counts the positions of a document; every visual rule is one."""

    def positions(self, row: TokenRow, seconds_per_grid: Sequence[float] = ()) -> NDArray[np.int64]:
        """Return position ids as (axes, n): one axis, or three for time, height and width."""


def spans_of(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the runs of True as (start, length): [0 1 1 0 1] gives [[1, 2], [4, 1]]."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    return np.stack([starts, ends - starts], axis=1).astype(np.int64, copy=False)


def mask_of(spans: NDArray[Any], length: int) -> NDArray[np.bool_]:
    """Return the mask of `length` tokens that has these runs: the inverse of `spans_of`."""
    mask = np.zeros(length, np.bool_)
    for start, count in spans.tolist():
        mask[start : start + count] = True
    return mask


def modality_of(media: tuple[MediaSpan, ...], length: int) -> NDArray[np.uint8]:
    """Return the modality of each token: 0 text, 1 image, 2 video, 3 audio."""
    modality = np.zeros(length, np.uint8)
    for span in media:
        modality[span.position : span.position + span.num_tokens] = MODALITIES[span.kind]
    return modality


def cut_row(row: TokenRow, num_tokens: int, is_fixed: NDArray[np.bool_] | None = None) -> TokenRow:
    """Return the row with `num_tokens` tokens: the last that may go are gone.

    `is_fixed` marks the tokens that stay, by default media with their delimiters. A row that is
    shorter, or that is longer even without all that may go, is a `SampleError`.
    """
    if len(row.ids) == num_tokens:
        return row
    if len(row.ids) < num_tokens:
        raise SampleError(
            "shorter than planned", f"{row.key} has {len(row.ids)} tokens, planned {num_tokens}"
        )
    if is_fixed is None:
        is_fixed = np.zeros(len(row.ids), np.bool_)
        for span in row.media:
            is_fixed[span.start : span.end] = True
    kept = kept_tokens(is_fixed, num_tokens)
    return replace(
        row,
        ids=row.ids[kept],
        loss=spans_of(mask_of(row.loss, len(row.ids))[kept]),
        # A medium moves up by the text that went before it: to the rank of its first token.
        media=tuple(
            replace(span, position=int(np.searchsorted(kept, span.start)) + span.before)
            for span in row.media
        ),
    )


def kept_tokens(is_fixed: NDArray[np.bool_], num_kept: int) -> NDArray[np.int64]:
    """Return the numbers of the tokens that stay when `num_kept` do.

    Of [text, image, text, text] with 3 to keep, those are 0, 1 and 2.
    """
    surplus = len(is_fixed) - num_kept
    if surplus <= 0:
        return np.arange(len(is_fixed))
    text = np.flatnonzero(~is_fixed)
    if surplus > len(text):
        num_fixed = len(is_fixed) - len(text)
        raise SampleError("too long", f"{num_fixed} tokens remain without any text, not {num_kept}")
    return np.delete(np.arange(len(is_fixed)), text[len(text) - surplus :])
