"""Packs to a batch: padded, stacked, with the attention layout and media that the model takes.

    input_ids, labels, mm_token_type_ids   int64 [B, S]
    position_ids                           int64 [B, S], or [3, B, S] with mRoPE
    pixel_values, image_grid_thw, ...      of all packs in order, floats in `media_dtype`
    n_images_per_sample, n_videos_per_sample   int64 [B], if any pack has media
    media_chunks                           a list of dicts instead, one for each pipeline chunk

Labels are shifted (place i holds the token it shall predict), or not, for models that shift them
inside; then the first token of each document has none, so that no document predicts the next.

Attention is one of three ways to tell a model where documents end (B packs, S places, D documents):

    indexed  attention_mask int64 [B, S]: 1, 2, 3 ... by document, 0 for padding
    4d       attention_mask bool [B, 1, S, S]: a place sees itself and what is before it in its
             document; padding sees only itself, since a row that sees nothing becomes NaN
    thd      seq_lens, seq_lens_padded int64 [B, D], filled up with -1000; cu_seqlens int32 over the
             flattened batch, padding included; max_seqlen; qkv_format = "thd"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.errors import ConfigError, need
from shardmill.packing.build import NO_LABEL, Layout, Pack
from shardmill.train.documents import TrainPack, join_tensors

Attention = Literal["indexed", "4d", "thd"]
Labels = Literal["shifted", "unshifted"]
# As NeMo fills up these tables.
NO_DOCUMENT = -1000
IMAGE = 1
COUNTED = {"image": "n_images_per_sample", "video": "n_videos_per_sample"}
# Pixels of a side of the dummy image: the smallest that common processors take.
SIDE = 56


@dataclass(frozen=True, slots=True)
class DummyImage:
    """One small white image for a pack that has none, so that no rank skips its vision tower.

    With sharded weights, a rank that does not run the tower leaves the others waiting for it. The
    tokens of the image stand in the padding at the end of the pack: they belong to no document,
    nothing attends to them, and they carry no loss. `ids` and `tensors` are as the model's
    processor makes them.
    """

    ids: NDArray[np.int64]
    tensors: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collate:
    """The `collate_fn` of packs; see the module for the names, types and shapes of a batch.

    Packs are padded with `pad_id` to the longest of the batch, rounded up to `multiple_of`, or to a
    fixed `length`. `dummy` is an image for packs that have none. `num_chunks` splits the media of a
    batch for the micro-batches of a pipeline. A pack that does not fit into `length` raises
    `ConfigError`.
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
                + (f" ({room} places are for the dummy image)" if room else "")
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
        # The model shifts these itself: the first token would be predicted by the document before.
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
        joined = join_tensors(tensors)
        if self.media_dtype is None:
            return joined
        return {
            name: tensor.to(self.media_dtype) if tensor.is_floating_point() else tensor
            for name, tensor in joined.items()
        }


@dataclass(frozen=True, slots=True)
class _Filled:
    """A pack's ids, modality and tensors, with the dummy image if it needed one."""

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


def _index_masks(layouts: Sequence[Layout], size: int) -> torch.Tensor:
    # The number of the document at each place, 0 for padding.
    masks = np.zeros((len(layouts), size), np.int64)
    for mask, layout in zip(masks, layouts):
        mask[: layout.size] = layout.index_mask()
    return torch.from_numpy(masks)


def _indexed(layouts: Sequence[Layout], size: int) -> dict[str, Any]:
    return {"attention_mask": _index_masks(layouts, size)}


def _block_causal(layouts: Sequence[Layout], size: int) -> dict[str, Any]:
    index = _index_masks(layouts, size)
    # Documents 1 1 2 0 (0 is padding): places 0 and 1 see each other and place 2 itself; the lower
    # triangle then takes the future away, and the diagonal lets the padding see itself.
    allowed = index[:, :, None] == index[:, None, :]
    allowed &= (index > 0)[:, None, :]
    allowed = allowed.tril_()
    allowed |= torch.eye(size, dtype=torch.bool)
    return {"attention_mask": allowed[:, None]}


def _thd(layouts: Sequence[Layout], size: int) -> dict[str, Any]:
    # The padding at the end of a pack belongs to its last document.
    lengths = [_or_one_empty(layout.lengths) for layout in layouts]
    padded = [_filled_up(layout.padded, size) for layout in layouts]
    flat = np.fromiter(chain.from_iterable(row.tolist() for row in padded), np.int64)
    return {
        "seq_lens": _table(lengths),
        "seq_lens_padded": _table(padded),
        "cu_seqlens": torch.from_numpy(np.concatenate([[0], np.cumsum(flat)]).astype(np.int32)),
        "max_seqlen": int(flat.max(initial=0)),
        "qkv_format": "thd",
    }


LAYOUTS: Mapping[str, Callable[[Sequence[Layout], int], dict[str, Any]]] = {
    "indexed": _indexed,
    "4d": _block_causal,
    "thd": _thd,
}


def _or_one_empty(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    # A pack without documents is all padding, which must belong to something.
    return lengths if len(lengths) else np.zeros(1, np.int64)


def _filled_up(padded: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    filled = _or_one_empty(padded).copy()
    filled[-1] += size - int(filled.sum())
    return filled


def _table(rows: Sequence[NDArray[np.int64]]) -> torch.Tensor:
    table = np.full((len(rows), max(map(len, rows))), NO_DOCUMENT, np.int64)
    for place, row in zip(table, rows):
        place[: len(row)] = row
    return torch.from_numpy(table)


def dummy_image(processor: Any, side: int = SIDE) -> DummyImage:
    """Return a white square as a Hugging Face processor makes it.

    One that has no `image_token` takes no images, and is a `ConfigError`.
    """
    images = need("PIL.Image", extra="image")
    token = getattr(processor, "image_token", None)
    if token is None:
        raise ConfigError(f"{type(processor).__name__} has no image_token: it takes no images")
    white = images.new("RGB", (side, side), (255, 255, 255))
    made = dict(processor(text=[token], images=[white], return_tensors="pt"))
    ids = np.asarray(made.pop("input_ids")[0], np.int64)
    for name in ("attention_mask", "mm_token_type_ids"):
        made.pop(name, None)
    # Only the tokens of the image: delimiters and what the tokenizer adds would stand in padding.
    image_id = processor.tokenizer.convert_tokens_to_ids(token)
    return DummyImage(ids[ids == image_id], made)


# Batches by name, as `loader(..., collate=NAME)` takes them.
COLLATES: Mapping[str, Collate] = {
    "indexed": Collate(),
    "transformers": Collate(attention="4d", labels="unshifted"),
    "thd": Collate(attention="thd"),
}
