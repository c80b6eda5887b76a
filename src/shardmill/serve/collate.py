"""Packs to a batch: padded, stacked, with the attention layout and media that the model takes.

    input_ids, labels, mm_token_type_ids   int64 [B, S]
    position_ids                           int64 [B, S], or [3, B, S] with mRoPE
    attention                              see `serve.attention`
    pixel_values, image_grid_thw, ...      of all packs in order, floats in `media_dtype`
    n_images_per_sample, n_videos_per_sample   int64 [B], if any pack has media
    media_chunks                           a list of dicts instead, one for each pipeline chunk

Labels are shifted (place i holds the token it shall predict), or not, for models that shift them
inside; then the first token of each document has none, so that no document predicts the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.pack.build import NO_LABEL, Pack
from shardmill.serve.attention import LAYOUTS, Attention
from shardmill.serve.dummy import DummyImage
from shardmill.serve.packed import TrainPack, join_each

Labels = Literal["shifted", "unshifted"]
COUNTED = {"image": "n_images_per_sample", "video": "n_videos_per_sample"}
IMAGE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Collate:
    """The `collate_fn` of packs.

    Packs are padded to the longest of the batch, rounded up to `multiple_of`, or to a fixed
    `length`. `num_chunks` splits the media of a batch for the micro-batches of a pipeline.
    """

    attention: Attention = "indexed"
    labels: Labels = "shifted"
    length: int | None = None
    multiple_of: int = 1
    pad_id: int = 0
    media_dtype: torch.dtype | None = None
    dummy: DummyImage | None = None
    num_chunks: int | None = None

    def __post_init__(self) -> None:
        if self.attention not in LAYOUTS:
            known = ", ".join(LAYOUTS)
            raise ConfigError(f"attention must be one of {known}, got {self.attention!r}")
        if self.labels not in get_args(Labels):
            known = ", ".join(get_args(Labels))
            raise ConfigError(f"labels must be one of {known}, got {self.labels!r}")
        if self.multiple_of < 1 or (self.num_chunks is not None and self.num_chunks < 1):
            raise ConfigError("multiple_of and num_chunks must be at least 1")

    def __call__(self, packs: Sequence[TrainPack]) -> dict[str, Any]:
        """Return the batch."""
        with_dummies = [self._with_dummy(pack) for pack in packs]
        size = self._size([len(item.ids) for item in with_dummies])
        batch = {
            "input_ids": _stack([item.ids for item in with_dummies], size, self.pad_id),
            "labels": _stack([self._labels(pack.pack) for pack in packs], size, NO_LABEL),
            "mm_token_type_ids": _stack([item.modality for item in with_dummies], size, 0),
            "position_ids": _stack([pack.pack.position_ids for pack in packs], size, 0),
        }
        batch |= LAYOUTS[self.attention]([pack.pack.layout for pack in packs], size)
        return batch | self._media(packs, [item.tensors for item in with_dummies])

    def _size(self, lengths: Sequence[int]) -> int:
        longest = max(1, *lengths)
        if self.length is None:
            return -(-longest // self.multiple_of) * self.multiple_of
        if longest > self.length:
            room = 0 if self.dummy is None else len(self.dummy.ids)
            raise ConfigError(
                f"a pack takes {longest} places, the batch has {self.length}: plan with a "
                f"capacity of at most {self.length - room}"
                + (f" ({room} places are for the dummy picture)" if room else "")
            )
        return self.length

    def _with_dummy(self, pack: TrainPack) -> _Filled:
        filled = _Filled(pack.pack.input_ids, pack.pack.modality, pack.tensors)
        if self.dummy is None or pack.pack.media or pack.tensors:
            return filled
        ids = self.dummy.ids
        return _Filled(
            np.concatenate([filled.ids, ids]),
            np.concatenate([filled.modality, np.full(len(ids), IMAGE, np.uint8)]),
            self.dummy.tensors,
        )

    def _labels(self, pack: Pack) -> NDArray[np.int64]:
        if self.labels == "shifted":
            return pack.labels()
        labels = np.where(pack.loss_mask, pack.input_ids, NO_LABEL)
        labels[pack.layout.starts[pack.layout.lengths > 0]] = NO_LABEL
        return labels

    def _media(
        self, packs: Sequence[TrainPack], tensors: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        if not any(tensors):
            return {}
        counts = {
            name: torch.tensor([_count(pack, kind) for pack in packs])
            for kind, name in COUNTED.items()
        }
        found = {name: count for name, count in counts.items() if count.any()}
        if self.num_chunks is None:
            return found | self._join(tensors)
        if len(packs) % self.num_chunks:
            raise ConfigError(
                f"{len(packs)} packs do not split into {self.num_chunks} equal pipeline chunks"
            )
        step = len(packs) // self.num_chunks
        chunks = [self._join(tensors[i : i + step]) for i in range(0, len(packs), step)]
        return found | {"media_chunks": chunks}

    def _join(self, tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {name: self._cast(tensor) for name, tensor in join_each(tensors).items()}

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.media_dtype is None or not tensor.is_floating_point():
            return tensor
        return tensor.to(self.media_dtype)


@dataclass(frozen=True, slots=True)
class _Filled:
    """A pack's ids, modality and tensors, with the dummy picture if it needed one."""

    ids: NDArray[np.int64]
    modality: NDArray[np.uint8]
    tensors: Mapping[str, Any]


def _count(pack: TrainPack, kind: str) -> int:
    # A video may have many runs of tokens, but has one grid.
    grids = pack.tensors.get(f"{kind}_grid_thw")
    if grids is not None:
        return len(grids)
    return sum(medium.span.kind == kind for medium in pack.pack.media)


def _stack(rows: Sequence[NDArray[Any]], size: int, fill: int) -> torch.Tensor:
    # Rows of shape (3, n) give [3, B, S]: that is how models take three axes.
    batch = np.full((*rows[0].shape[:-1], len(rows), size), fill, np.int64)
    for number, row in enumerate(rows):
        batch[..., number, : row.shape[-1]] = row
    return torch.from_numpy(batch)
