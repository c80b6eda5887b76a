"""Rows of many lengths in a matrix of one: what is padded, cut, dropped or refused.

The fate of a row depends on its lengths alone, so that where each kept row goes is known before
any token is read, and whoever writes comes to the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, Filtered, SampleError
from shardmill.model.stage import Tally
from shardmill.shards.weave import Column, lengths_of, weave
from shardmill.storage.background import Room

Overlong: TypeAlias = Literal["refuse", "drop", "cut"]

BATCH_CELLS = 1 << 19
TOO_LONG = "longer than a row"
MEDIA_TOO_LONG = "media longer than a row"
EMPTY = "no tokens"


class Keys(Protocol):
    """Keys by row number; most are never asked for."""

    def __getitem__(self, row: int) -> str:
        """Return the key of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLength:
    """A row of `width` tokens; shorter ones end with `pad_id`, and are refused without it.

    `overlong` says what happens to longer ones: cut takes text from the end, and never media.
    """

    width: int
    pad_id: int | None = None
    overlong: Overlong = "refuse"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(f"a row needs at least one token, got {self.width}")

    def kept(self, lengths: NDArray[Any], num_fixed: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which rows stay; `num_fixed` are the tokens of each that are never cut."""
        size = num_fixed if self.overlong == "cut" else lengths
        fits: NDArray[np.bool_] = size <= self.width
        return fits

    def check(self, lengths: NDArray[Any], keys: Keys, where: object) -> None:
        """Raise `ConfigError` that names the first row which the policy refuses."""
        if self.overlong == "refuse" and (lengths > self.width).any():
            row = int(np.argmax(lengths > self.width))
            raise ConfigError(
                f"{where}: {keys[row]!r} has {lengths[row]} tokens, a row holds {self.width}: "
                "choose a greater length, or overlong=cut or overlong=drop"
            )
        if self.pad_id is None and (lengths < self.width).any():
            row = int(np.argmax(lengths < self.width))
            raise ConfigError(
                f"{where}: {keys[row]!r} has {lengths[row]} tokens, a row {self.width}: rows are "
                "of many lengths, say what fills them with pad_id=..."
            )

    def explain(self, length: int) -> Filtered:
        """Return why a row of this length is not kept."""
        reason = MEDIA_TOO_LONG if self.overlong == "cut" else TOO_LONG
        detail = f"{length} tokens, a row holds {self.width}"
        return Filtered(reason, detail) if length else Filtered(EMPTY)


def account(
    tally: Tally, kept: NDArray[np.bool_], keys: Keys, explain: Callable[[int], SampleError]
) -> None:
    """Enter rows into the books: those kept, and each other one with what `explain` says."""
    tally.num_in += len(kept)
    tally.num_kept += int(kept.sum())
    for row in np.flatnonzero(~kept).tolist():
        tally.skip(keys[row], explain(row))


def kept_tokens(
    bounds: NDArray[np.int64],
    kept: NDArray[np.bool_],
    width: int,
    is_fixed: Callable[[], NDArray[np.uint8]] | None = None,
) -> NDArray[np.bool_] | None:
    """Return which tokens stay of rows that begin at `bounds`; None if all do.

    Rows that are not kept lose all, longer ones their last tokens that are not fixed: of
    t m m t t with a width of 4 the last t goes, with a width of 3 both.
    """
    lengths = np.diff(bounds)
    surplus = np.where(kept, np.maximum(lengths - width, 0), 0)
    if bool(kept.all()) and not surplus.any():
        return None
    stays = np.repeat(kept, lengths)
    if surplus.any():
        text = np.ones(len(stays), np.bool_) if is_fixed is None else is_fixed() == 0
        rank = np.concatenate([[0], np.cumsum(text)])
        limit = rank[bounds[1:]] - surplus
        stays &= ~text | (rank[1:] <= np.repeat(limit, lengths))
    return stays


def rows_at_once(width: int) -> int:
    """Return how many rows of this width make a batch whose arrays stay near the processor."""
    # One less than a round number: what is written at round places the system caches in memory
    # that lies together, of which there is little (see io.pieces).
    return max(1, BATCH_CELLS // width - 1)


class Desk:
    """The arrays of one batch of rows, used again for the next.

    Memory that is new to the process costs more than all that is done in it.
    """

    def __init__(self, width: int, dtype: Any) -> None:
        # Narrow numbers are compared many at a time.
        self._places = np.arange(width, dtype=np.int16 if width < 1 << 15 else np.int64)
        self._mask = np.empty((0, width), np.bool_)
        self._dtype, self._room = np.dtype(dtype), Room()

    def filled(self, lengths: NDArray[Any]) -> NDArray[np.bool_]:
        """Return rows that are True in their first places, as many as each length says."""
        if len(lengths) > len(self._mask):
            self._mask = np.empty((len(lengths), len(self._places)), np.bool_)
        column = lengths.astype(self._places.dtype)[:, None]
        mask: NDArray[np.bool_] = np.less(self._places, column, out=self._mask[: len(lengths)])
        return mask

    def padded(self, pieces: Sequence[Column], fill: int) -> NDArray[Any]:
        """Return rows that begin with the pieces of each, of the desk's dtype, and end with `fill`.

        No row may be longer than the desk is wide.
        """
        padding = np.full(len(self._places), fill, self._dtype).view(np.uint8)
        rest = len(padding) - lengths_of(pieces)
        woven = weave([*pieces, Column(padding, np.zeros(len(rest), np.int64), rest)], self._room)
        rows: NDArray[Any] = woven.data.view(self._dtype).reshape(-1, len(self._places))
        return rows
