"""A tokenized sample: ids, the spans that carry loss, and where its media lie.

Masks are spans: `loss` has a row (start, length) for each run of tokens that is trained on, in
order and not touching. Modality needs no spans of its own: a token inside a `MediaSpan` has that
medium's modality, every other token is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.model.sample import SEGMENT_KINDS, Origin

MODALITIES = {kind: number for number, kind in enumerate(SEGMENT_KINDS)}


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
