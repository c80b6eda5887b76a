"""Packs to a batch, in the form that one's trainer takes; `TRAINERS` is the table of them.

    name          shape     labels    what tells documents apart
    transformers  [1, S]    plain     positions that restart, seq_idx, and without pixels
                                      cu_seq_lens_q/k, max_length_q/k
    torch         [1, S]    shifted   cu_seqlens, max_seqlen, document_ids
    torchtitan    [B, S]    shifted   positions; a batch is ({"input", "positions"}, labels)
    megatron      [1, S]    shifted   cu_seqlens, cu_seqlens_padded, max_seqlen; tokens, loss_mask
    nemo          [B, S]    shifted   as transformers
    nemo-thd      [B, S]    shifted   seq_lens, seq_lens_padded, qkv_format, for Transformer Engine

A batch of shape [1, S] has all its packs in one row. Plain labels are shifted inside the model; the
first token of a document has none, so that no document predicts the next. Shifted ones hold at each
place the token that it shall predict. Positions are [4, B, S] with mRoPE where models of
transformers read them: those of the text, by which they find the documents, in front of the three
axes; elsewhere [3, B, S]. Padding at the end is a document of its own. No batch has a dense mask:
`attention.dense_mask` makes one on the device.

With a `context` split a rank gets its places of the row, in whatever has a value for each: ids,
labels, positions, `seq_idx`, `document_ids`, `loss_mask`. Labels are shifted before the row is cut,
so that the last place of a part predicts the first of the next one; models of transformers find
them as `shift_labels`. Ends and lengths of documents stay those of the whole row.

Media are joined over all packs, under the names of the processor. With `num_chunks` they come as
`media_chunks`, a list of dicts, one for each micro-batch of a pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.errors import ConfigError, need
from shardmill.packing.build import NO_LABEL, Pack
from shardmill.train.context import IN_ORDER, ContextSplit
from shardmill.train.documents import TrainPack, join_tensors

# As NeMo fills up its tables of lengths.
NO_DOCUMENT = -1000
IMAGE = 1
COUNTED = {"image": "n_images_per_sample", "video": "n_videos_per_sample"}
# What processors call the kind of each token; Gemma 3 finds its images by them.
TYPE_IDS = ("mm_token_type_ids", "token_type_ids")
# Where documents end in the row, in the words of the trainers that do not split rows themselves.
ENDS = ("cu_seqlens_padded", "cu_seqlens", "cu_seq_lens_q")
# Pixels of a side of the dummy image: the smallest that common processors take.
SIDE = 56


@dataclass(frozen=True, slots=True)
class DummyImage:
    """One small white image for a batch that has none, so that no rank skips its vision tower.

    With sharded weights, a rank that does not run the tower leaves the others waiting for it. The
    tokens of the image are a document of their own at the end, without loss. `ids` and `tensors`
    are as the model's processor makes them, `type_ids` is its name for the kinds of tokens.
    """

    ids: NDArray[np.int64]
    tensors: Mapping[str, Any]
    type_ids: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One row of a batch: a pack, or several. `padded` are the places of each document."""

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    modality: NDArray[np.int64]
    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]
    padded: NDArray[np.int64]
    tensors: Mapping[str, Any]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """What a trainer takes.

    `flat`: all packs in one row. `shifted`: labels are. `text_row`: text positions stand in front
    of mRoPE's axes. `names` are its words for ours, `attention` gives what tells documents apart,
    `finish` makes the batch of all that. `splits`: it shares rows among ranks itself.
    """

    flat: bool
    shifted: bool = True
    text_row: bool = False
    names: Mapping[str, str]
    attention: Callable[[Sequence[BatchRow]], dict[str, Any]]
    counted: bool = False
    splits: bool = False
    finish: Callable[[dict[str, Any]], Any] = dict


@dataclass(frozen=True, slots=True)
class Collate:
    """The `collate_fn` of packs for a trainer: one of the names in the module's table.

    A batch is padded with `pad_id` to the longest row, rounded up to `multiple_of`, or to a fixed
    `length`; what does not fit raises `ConfigError`. Floats of media become `media_dtype`. `dummy`
    is an image for batches that have none; `loader` sets it if there is a processor. `num_chunks`
    splits the media of a batch for the micro-batches of a pipeline. `context` is this rank's part
    of each row; the row is padded to what can be split.

        collate = sm.Collate("transformers", multiple_of=128)
        loader = sm.loader("packs.plan", "tokens", collate=collate)
    """

    trainer: str
    length: int | None = None
    multiple_of: int = 1
    pad_id: int = 0
    media_dtype: torch.dtype | None = None
    dummy: DummyImage | None = None
    num_chunks: int | None = None
    context: ContextSplit | None = None

    def __post_init__(self) -> None:
        if self.trainer not in TRAINERS:
            known = ", ".join(TRAINERS)
            raise ConfigError(f"unknown trainer {self.trainer!r}: batches are made for {known}")
        for name, least in (("length", 1), ("multiple_of", 1), ("num_chunks", 1), ("pad_id", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        if not isinstance(self.media_dtype, torch.dtype | None):
            raise ConfigError(f"media_dtype is a type of torch, got {self.media_dtype!r}")
        if self.num_chunks is not None and TRAINERS[self.trainer].flat:
            raise ConfigError(f"{self.trainer} batches have one row: num_chunks cannot split it")
        if self.context is None:
            return
        if TRAINERS[self.trainer].splits:
            raise ConfigError(
                f"{self.trainer} splits rows among its ranks itself: leave out context"
            )
        if not TRAINERS[self.trainer].shifted and self.context.kind not in IN_ORDER:
            raise ConfigError(
                f"models of {self.trainer} take parts in the order of the row: context "
                f"{' or '.join(IN_ORDER)}, got {self.context.kind}"
            )
        if self.length is not None and self.length % self.context.multiple:
            raise ConfigError(
                f"length {self.length} cannot be split as {self.context.kind} among "
                f"{self.context.world} ranks: take a multiple of {self.context.multiple}"
            )

    def for_processor(self, processor: Any) -> Collate:
        """Return this with the dummy image of a processor that takes images."""
        if self.dummy is not None or getattr(processor, "image_token", None) is None:
            return self
        return replace(self, dummy=dummy_image(processor))

    def __call__(self, packs: Sequence[TrainPack]) -> Any:
        """Return the batch."""
        trainer = TRAINERS[self.trainer]
        if not packs or not all(isinstance(pack, TrainPack) for pack in packs):
            raise ConfigError("a batch is made of packs, and of one at least")
        rows = [_row(pack, trainer) for pack in packs]
        if trainer.flat:
            rows = [_join_rows(rows)]
        rows = [self._with_dummy(row) for row in rows]
        size = self._size([len(row.ids) for row in rows])
        rows = [_filled_up(row, size, self.pad_id) for row in rows]
        batch = {
            "input_ids": _stack([row.ids for row in rows]),
            "labels": _stack([row.labels for row in rows]),
            "position_ids": _stack([row.positions for row in rows]),
        }
        type_ids = None if self.dummy is None else self.dummy.type_ids
        if type_ids is not None:
            batch[type_ids] = _stack([row.modality for row in rows])
        batch |= trainer.attention(rows)
        batch |= self._media(rows, trainer)
        if self.context is not None:
            batch = _part(batch, rows, self.context, trainer)
        return trainer.finish({trainer.names.get(name, name): v for name, v in batch.items()})

    def _size(self, lengths: Sequence[int]) -> int:
        longest = max(1, *lengths)
        if self.length is None:
            split = 1 if self.context is None else self.context.multiple
            multiple = math.lcm(self.multiple_of, split)
            return -(-longest // multiple) * multiple
        if longest > self.length:
            room = 0 if self.dummy is None else len(self.dummy.ids)
            raise ConfigError(
                f"a row takes {longest} places, the batch has {self.length}: plan with a "
                f"capacity of at most {self.length - room}"
                + (f" ({room} places are for the dummy image)" if room else "")
                + (", and one pack a batch" if TRAINERS[self.trainer].flat else "")
            )
        return self.length

    def _with_dummy(self, row: BatchRow) -> BatchRow:
        # Each row, since whoever cuts a batch into micro-batches must find one in all of them.
        if self.dummy is None or row.tensors:
            return row
        size = len(self.dummy.ids)
        return replace(
            _lengthened(row, self.dummy.ids, IMAGE),
            lengths=np.append(row.lengths, size),
            padded=np.append(row.padded, size),
            tensors=self.dummy.tensors,
            counts={**row.counts, COUNTED["image"]: len(self.dummy.tensors) > 0},
        )

    def _media(self, rows: Sequence[BatchRow], trainer: Trainer) -> dict[str, Any]:
        tensors = [row.tensors for row in rows]
        if not any(tensors):
            return {}
        found = {}
        for name in COUNTED.values() if trainer.counted else ():
            counts = [row.counts.get(name, 0) for row in rows]
            if any(counts):
                found[name] = torch.tensor(counts)
        if self.num_chunks is None:
            return found | self._join(tensors)
        if len(rows) % self.num_chunks:
            raise ConfigError(
                f"{len(rows)} packs do not split into {self.num_chunks} equal pipeline chunks"
            )
        step = len(rows) // self.num_chunks
        chunks = [self._join(tensors[i : i + step]) for i in range(0, len(rows), step)]
        return found | {"media_chunks": chunks}

    def _join(self, tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        joined = join_tensors(tensors)
        if self.media_dtype is None:
            return joined
        return {
            name: tensor.to(self.media_dtype) if tensor.is_floating_point() else tensor
            for name, tensor in joined.items()
        }


def _row(item: TrainPack, trainer: Trainer) -> BatchRow:
    pack = item.pack
    layout = pack.layout
    positions = pack.position_ids
    if positions.ndim > 1 and trainer.text_row:
        positions = np.concatenate([layout.position_ids()[None], positions])
    rest = layout.size - int(layout.padded.sum())
    return BatchRow(
        ids=pack.input_ids,
        labels=pack.labels() if trainer.shifted else _plain_labels(pack),
        modality=pack.modality.astype(np.int64),
        positions=positions,
        lengths=np.append(layout.lengths, [0] * (rest > 0)).astype(np.int64),
        padded=np.append(layout.padded, [rest] * (rest > 0)).astype(np.int64),
        tensors=item.tensors,
        counts={name: _count(item, kind) for kind, name in COUNTED.items()},
    )


def _plain_labels(pack: Pack) -> NDArray[np.int64]:
    labels = np.where(pack.loss_mask, pack.input_ids, NO_LABEL)
    # The model shifts these itself: the first token would be predicted by the document before.
    labels[pack.layout.starts[pack.layout.lengths > 0]] = NO_LABEL
    return labels


def _count(item: TrainPack, kind: str) -> int:
    # A video may have many runs of tokens, but has one grid.
    grids = item.tensors.get(f"{kind}_grid_thw")
    if grids is not None:
        return len(grids)
    return sum(medium.span.kind == kind for medium in item.pack.media)


def _join_rows(rows: Sequence[BatchRow]) -> BatchRow:
    if len(rows) == 1:
        return rows[0]
    arrays = ("ids", "labels", "modality", "positions", "lengths", "padded")
    return BatchRow(
        **{name: np.concatenate([getattr(r, name) for r in rows], axis=-1) for name in arrays},
        tensors=join_tensors([row.tensors for row in rows]),
        counts={name: sum(row.counts[name] for row in rows) for name in COUNTED.values()},
    )


def _lengthened(row: BatchRow, ids: NDArray[np.int64], modality: int) -> BatchRow:
    # What comes behind the packs restarts at position 0, as any document does.
    size = len(ids)
    more = np.broadcast_to(np.arange(size), (*row.positions.shape[:-1], size))
    return replace(
        row,
        ids=np.concatenate([row.ids, ids]),
        labels=np.concatenate([row.labels, np.full(size, NO_LABEL)]),
        modality=np.concatenate([row.modality, np.full(size, modality)]),
        positions=np.concatenate([row.positions, more], axis=-1),
    )


def _filled_up(row: BatchRow, size: int, pad_id: int) -> BatchRow:
    rest = size - len(row.ids)
    if not rest:
        return row
    return replace(
        _lengthened(row, np.full(rest, pad_id), 0),
        lengths=np.append(row.lengths, 0),
        padded=np.append(row.padded, rest),
    )


def _part(
    batch: dict[str, Any], rows: Sequence[BatchRow], context: ContextSplit, trainer: Trainer
) -> dict[str, Any]:
    if any(row.tensors for row in rows):
        raise ConfigError(
            "a row with pixels cannot be split: images are put in before. Leave out context, and "
            "split what the model has embedded by ContextSplit.places"
        )
    if not trainer.shifted:
        ahead = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=NO_LABEL)
        batch = {**batch, "shift_labels": ahead}
    ends = next(batch[name] for name in ENDS if name in batch)
    places = torch.from_numpy(context.places(ends.diff().numpy().astype(np.int64)))
    return {
        # What tells of documents has one axis, what has a value for each place has more.
        name: value[..., places] if isinstance(value, torch.Tensor) and value.ndim > 1 else value
        for name, value in batch.items()
    }


def _stack(rows: Sequence[NDArray[Any]]) -> torch.Tensor:
    # Rows of shape (3, n) give [3, B, S]: that is how models take three axes.
    return torch.from_numpy(np.stack(rows, axis=-2).astype(np.int64, copy=False))


def _ends(lengths: Sequence[NDArray[np.int64]]) -> torch.Tensor:
    # 0 and the place after each document, over all rows; empty documents end where they begin.
    found = np.concatenate(lengths)
    return torch.from_numpy(np.append(0, np.cumsum(found[found > 0])).astype(np.int32))


def _longest(rows: Sequence[BatchRow]) -> int:
    return int(max(row.padded.max(initial=0) for row in rows))


def _document_ids(rows: Sequence[BatchRow]) -> torch.Tensor:
    # 0, 0, 0, 1, 1 ... in each row.
    ids = [np.repeat(np.arange(len(row.padded)), row.padded) for row in rows]
    return torch.from_numpy(np.stack(ids).astype(np.int32))


def _transformers(rows: Sequence[BatchRow]) -> dict[str, Any]:
    made = {
        "seq_idx": _document_ids(rows),  # models with recurrent layers reset their state by it
        "use_cache": False,  # with a cache, models do not look for documents in positions
    }
    if any(row.tensors for row in rows):
        # Some versions hand these on to the vision tower, which has its own. Positions say it, too.
        return made
    ends, longest = _ends([row.padded for row in rows]), _longest(rows)
    lengths = {"max_length_q": longest, "max_length_k": longest}
    return {**made, **lengths, "cu_seq_lens_q": ends, "cu_seq_lens_k": ends}


def _torch(rows: Sequence[BatchRow]) -> dict[str, Any]:
    return {
        "cu_seqlens": _ends([row.padded for row in rows]),
        "max_seqlen": _longest(rows),
        "document_ids": _document_ids(rows),
    }


def _megatron(rows: Sequence[BatchRow]) -> dict[str, Any]:
    (row,) = rows
    lengths, padded = _megatron_lengths(row)
    return {
        "loss_mask": torch.from_numpy((row.labels != NO_LABEL)[None].astype(np.float32)),
        "cu_seqlens": torch.from_numpy(np.append(0, np.cumsum(lengths)).astype(np.int32)),
        "cu_seqlens_padded": torch.from_numpy(np.append(0, np.cumsum(padded)).astype(np.int32)),
        "max_seqlen": torch.tensor([padded.max()], dtype=torch.int32),
    }


def _megatron_lengths(row: BatchRow) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    # Padding at the end belongs to the last document, as padding inside of documents does.
    is_real = row.lengths > 0
    if not is_real.any():
        return np.zeros(1, np.int64), np.array([row.padded.sum()])
    lengths, padded = row.lengths[is_real], row.padded[is_real].copy()
    padded[-1] += len(row.ids) - padded.sum()
    return lengths, padded


def _nemo_thd(rows: Sequence[BatchRow]) -> dict[str, Any]:
    found = [_megatron_lengths(row) for row in rows]
    return {
        "seq_lens": _table([lengths for lengths, _ in found]),
        "seq_lens_padded": _table([padded for _, padded in found]),
        "qkv_format": "thd",
    }


def _table(rows: Sequence[NDArray[np.int64]]) -> torch.Tensor:
    table = np.full((len(rows), max(map(len, rows))), NO_DOCUMENT, np.int64)
    for place, row in zip(table, rows):
        place[: len(row)] = row
    return torch.from_numpy(table)


def _one_axis(rows: Sequence[BatchRow]) -> dict[str, Any]:
    # It finds documents by positions that restart, which those of mRoPE do not.
    if rows[0].positions.ndim > 1:
        raise ConfigError("torchtitan takes positions of one axis: use another trainer for mRoPE")
    return {}


def _torchtitan(batch: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
    labels = batch.pop("labels")
    return batch, labels


TRAINERS: Mapping[str, Trainer] = {
    "transformers": Trainer(
        flat=True, shifted=False, text_row=True, names={}, attention=_transformers
    ),
    "torch": Trainer(flat=True, names={}, attention=_torch),
    "torchtitan": Trainer(
        flat=False,
        names={"input_ids": "input", "position_ids": "positions"},
        attention=_one_axis,
        splits=True,
        finish=_torchtitan,
    ),
    "megatron": Trainer(flat=True, names={"input_ids": "tokens"}, attention=_megatron),
    "nemo": Trainer(
        flat=False, text_row=True, names={}, attention=_transformers, counted=True, splits=True
    ),
    "nemo-thd": Trainer(flat=False, names={}, attention=_nemo_thd, counted=True, splits=True),
}


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
    made.pop("attention_mask", None)
    type_ids = next((name for name in TYPE_IDS if made.pop(name, None) is not None), None)
    # Only the tokens of the image: delimiters and what the tokenizer adds would stand in padding.
    image_id = processor.tokenizer.convert_tokens_to_ids(token)
    return DummyImage(ids[ids == image_id], made, type_ids)


def num_items(*batches: Any) -> torch.Tensor:
    """Return by how many tokens a rank must divide its summed loss, over batches of one step.

    That is the number of labels on all ranks over the number of ranks: trainers average the
    gradients of ranks, so each token then counts the same, in whatever batch and rank it is.

        model(**batch, num_items_in_batch=sm.num_items(batch)).loss.backward()
    """
    labels = [batch[1] if isinstance(batch, tuple) else batch["labels"] for batch in batches]
    count = torch.stack([(found != NO_LABEL).sum() for found in labels]).sum().float()
    shared = torch.distributed
    if shared.is_available() and shared.is_initialized():
        if shared.get_backend() == "nccl":
            count = count.cuda()
        shared.all_reduce(count)
        count /= shared.get_world_size()
    return count.clamp(min=1e-9)  # a step without a label has a loss of 0, not of 0 / 0
