"""Drop-in for NeMo Automodel's VLM neat packing: change one import, keep every call.

    from shardmill.neat_packing import neat_pack_dataset_vlm

Same names, arguments, keys and dtypes as nemo_automodel.components.datasets.vlm.neat_packing_vlm.
The plan is made at once, in milliseconds and near the lower bound; packs are built when they are
asked for. A sample that cannot be read is tried again and then left out; one that turns out longer
than its estimate is left out; both are counted in `dropped`, by reason. Nothing is replaced by a
random other sample.

A shuffling DistributedSampler would mix packs of unlike cost into one step; `balanced_sampler`
shuffles without that, for any number of ranks.

Samples are dicts of tensors: `input_ids`, `labels` and `attention_mask` of length L, optional
`mm_token_type_ids`, `position_ids` (3, L) and media. A sample is shifted on its own, so it takes
L - 1 places of a pack.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.errors import ConfigError, ShardmillError, StaleError
from shardmill.model.rng import mix
from shardmill.packing.build import NO_LABEL, Layout, lay_out
from shardmill.packing.order import EpochOrder, shuffled
from shardmill.tokens.count import estimate_medium, given_sizes
from shardmill.train.nemo import (
    PackBins,
    estimate_lengths,
    estimate_sample_length,
    greedy_knapsack,
    greedy_knapsack_vt_balanced,
    ordered,
    plan_lengths,
    rule_of_configs,
)

__all__ = [
    "MEDIA_KEYS",
    "BalancedPackSampler",
    "PackedDatasetWrapper",
    "_build_packed_vlm_sample",
    "_compute_mrope_position_ids",
    "_estimate_image_tokens",
    "_estimate_sample_length",
    "_estimate_video_tokens",
    "_shift_sample",
    "greedy_knapsack",
    "greedy_knapsack_vt_balanced",
    "neat_pack_dataset_vlm",
]

logger = logging.getLogger(__name__)

MEDIA_KEYS = (
    "pixel_values",
    "image_grid_thw",
    "image_position_ids",
    "pixel_values_videos",
    "video_grid_thw",
    "second_per_grid_ts",
)
# What reading, decoding and tokenizing one sample can raise; MemoryError and Ctrl-C are not here.
SAMPLE_ERRORS = (
    ShardmillError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
)

Config = Mapping[str, Any]
Tensors = Mapping[str, Any]
GetRopeIndex = Callable[..., Any]


def neat_pack_dataset_vlm(
    dataset: Any,
    pack_size: int,
    padding_idx: int = 0,
    drop_long_samples: bool = False,
    max_packs: int | None = None,
    get_rope_index: GetRopeIndex | None = None,
    ds_raw: Any = None,
    packing_ratio: float = 1.0,
    processor: Any = None,
    balance_media_tokens: bool = True,
    sequence_alignment: int = 1,
) -> PackedDatasetWrapper:
    """Return the lazily packed data set; `ds_raw` gives the lengths without tokenizing.

    `packing_ratio` is the share of a pack that is planned, so that estimates may be wrong by the
    rest. Packs come in an order of like cost, unless `balance_media_tokens` is False.
    """
    capacity = int(pack_size * packing_ratio)
    if capacity < sequence_alignment:
        raise ConfigError(
            f"pack_size {pack_size} x packing_ratio {packing_ratio} leaves {capacity} tokens, "
            f"less than sequence_alignment {sequence_alignment}"
        )
    if ds_raw is not None and len(ds_raw) != len(dataset):
        raise ConfigError(f"ds_raw has {len(ds_raw)} rows, the data set {len(dataset)}")
    lengths, visual = estimate_lengths(dataset, ds_raw, processor, capacity)
    aligned = -(-lengths // sequence_alignment) * sequence_alignment
    too_long = aligned > pack_size if drop_long_samples and ds_raw is not None else aligned < 0
    # A sample whose estimate exceeds a pack gets one of its own: the estimate may be wrong.
    room = capacity // sequence_alignment * sequence_alignment
    plan = plan_lengths(
        np.minimum(lengths, room), visual, too_long, capacity, max_packs, sequence_alignment
    )
    packed = PackedDatasetWrapper(
        dataset,
        PackBins(ordered(plan) if balance_media_tokens else plan, dataset),
        pack_size,
        padding_idx,
        sequence_alignment,
        get_rope_index,
    )
    if too_long.any():
        packed.dropped["estimated longer than a pack"] = int(too_long.sum())
        logger.warning("left out %d samples longer than a pack", int(too_long.sum()))
    return packed


class PackedDatasetWrapper(torch.utils.data.Dataset):  # type: ignore[misc]
    """Packs that are tokenized and built in `__getitem__`, which runs in loader workers."""

    def __init__(
        self,
        inner_dataset: Any,
        bins: Sequence[Sequence[int]],
        pack_size: int,
        padding_idx: int = 0,
        sequence_alignment: int = 1,
        get_rope_index: GetRopeIndex | None = None,
        max_retries: int = 10,
    ) -> None:
        if isinstance(bins, PackBins) and not bins.are_of(inner_dataset):
            raise StaleError(
                f"these packs of {bins.plan.num_rows} samples were planned for another data set "
                f"than this one of {len(inner_dataset)}: plan it with neat_pack_dataset_vlm, or "
                "give list(bins) if its rows are the same"
            )
        self.inner = inner_dataset
        self.bins = bins
        self.pack_size = pack_size
        self.padding_idx = padding_idx
        self.sequence_alignment = sequence_alignment
        self.get_rope_index = get_rope_index
        self.has_mrope = get_rope_index is not None
        self.max_retries = max_retries
        self.dropped: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.bins)

    def __getitem__(self, pack_idx: int) -> dict[str, Any]:
        """Build one pack: tokenize, shift and join its samples."""
        samples: list[dict[str, Any]] = []
        room = self.pack_size
        # Planned by estimates, so that a sample may be longer than the room that is left.
        for number in self.bins[pack_idx]:
            sample = self._read(int(number), pack_idx)
            if sample is None:
                continue
            length = len(sample["input_ids"])
            taken = -(-length // self.sequence_alignment) * self.sequence_alignment
            if taken > room:
                reason = "longer than a pack" if taken > self.pack_size else "longer than planned"
                self._drop(reason, f"sample {number} of pack {pack_idx} takes {taken} of {room}")
                continue
            room -= taken
            samples.append(sample)
        return _build_packed_vlm_sample(
            samples, self.pack_size, self.padding_idx, self.has_mrope, self.sequence_alignment
        )

    def robust_collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Return a collate function that tries again with other packs when a batch fails.

        Which packs follows from the attempt alone, so that a run can be repeated.
        """

        def collate(batch: list[Any]) -> Any:
            for attempt in range(self.max_retries):
                try:
                    return collate_fn(batch)
                except SAMPLE_ERRORS as error:
                    self._drop("batch does not collate", repr(error))
                    chosen = [mix(attempt, place) % len(self) for place in range(len(batch))]
                    batch = [self[number] for number in chosen]
            return collate_fn(batch)

        return collate

    def balanced_sampler(
        self, *, num_replicas: int = 1, rank: int = 0, seed: int = 0, drop_last: bool = False
    ) -> BalancedPackSampler:
        """Return a sampler for one rank that shuffles and keeps the ranks of a step alike."""
        return BalancedPackSampler(
            self, num_replicas=num_replicas, rank=rank, seed=seed, drop_last=drop_last
        )

    def _read(self, number: int, pack_idx: int) -> dict[str, Any] | None:
        problem = ""
        for _ in range(max(1, self.max_retries)):
            try:
                sample = self.inner[number]
                break
            except SAMPLE_ERRORS as error:
                problem = repr(error)
        else:
            self._drop("cannot be read", f"sample {number} of pack {pack_idx}: {problem}")
            return None
        if self.get_rope_index is not None:
            positions = _compute_mrope_position_ids(sample, self.get_rope_index)
            if positions is None:
                positions = _text_positions(len(sample["input_ids"]))
            sample = {**sample, "position_ids": positions}
        return _shift_sample(sample, self.has_mrope)

    def _drop(self, reason: str, detail: str) -> None:
        self.dropped[reason] += 1
        logger.warning("dropped: %s: %s", reason, detail)


class BalancedPackSampler(torch.utils.data.Sampler):  # type: ignore[misc]
    """The packs of one rank: shuffled by (seed, epoch), every step of like cost on all ranks.

    Takes the place of torch's DistributedSampler: call `set_epoch` before each epoch. All ranks
    get equally many packs; the first of the order are repeated to fill the last step, or with
    `drop_last` that step is left out.
    """

    def __init__(
        self,
        dataset: PackedDatasetWrapper,
        *,
        num_replicas: int = 1,
        rank: int = 0,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ConfigError(f"rank must be 0..{num_replicas - 1}, got {rank}")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        steps, rest = divmod(len(self.dataset), self.num_replicas)
        return steps + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[int]:
        order = self._order()
        # Rank r of 4 takes positions r, 4 + r, 8 + r: packs of one step are neighbours in the
        # order, and neighbours cost alike.
        positions = np.arange(len(self)) * self.num_replicas + self.rank
        return iter(order[positions % max(1, len(order))].tolist())

    def _order(self) -> NDArray[Any]:
        bins = self.dataset.bins
        if isinstance(bins, PackBins):
            return EpochOrder(bins.plan, seed=self.seed, epoch=self.epoch).all_packs()
        return shuffled(len(bins), mix(self.seed, self.epoch))


def _shift_sample(sample: Tensors, has_mrope: bool = False) -> dict[str, Any]:
    """Return the sample with each label at the place that predicts it: one place fewer."""
    shifted = {
        "input_ids": sample["input_ids"][:-1],
        "labels": sample["labels"][1:],
        "attention_mask": sample["attention_mask"][:-1],
    }
    if sample.get("mm_token_type_ids") is not None:
        shifted["mm_token_type_ids"] = sample["mm_token_type_ids"].reshape(-1)[:-1]
    if has_mrope and sample.get("position_ids") is not None:
        shifted["position_ids"] = sample["position_ids"][:, :-1]
    shifted.update({key: sample[key] for key in MEDIA_KEYS if sample.get(key) is not None})
    return shifted


def _build_packed_vlm_sample(
    samples: Sequence[Tensors],
    pack_size: int,
    padding_idx: int,
    has_mrope: bool = False,
    sequence_alignment: int = 1,
) -> dict[str, Any]:
    """Return one packed sample of shifted samples, not padded to `pack_size`.

    The index mask numbers documents from 1 and is 0 where a sample's own mask is 0. An empty pack
    has the shapes of any other, with no places.
    """
    lengths = [len(sample["input_ids"]) for sample in samples]
    layout = lay_out(lengths, alignment=sequence_alignment)
    packed: dict[str, Any] = {
        "input_ids": _place(layout, samples, "input_ids", padding_idx),
        "labels": _place(layout, samples, "labels", NO_LABEL),
        "attention_mask": _index_mask(layout, samples),
        "mm_token_type_ids": _place(layout, samples, "mm_token_type_ids", 0),
        "seq_lens": layout.lengths.tolist(),
        "seq_lens_padded": layout.padded.tolist(),
        "n_images": _count(samples, "image_grid_thw"),
        "n_videos": _count(samples, "video_grid_thw"),
        "position_ids": _positions(layout, samples, has_mrope),
    }
    for key in MEDIA_KEYS:
        packed[key] = _join_media(key, [s[key] for s in samples if s.get(key) is not None])
    return packed


def _compute_mrope_position_ids(sample: Tensors, get_rope_index: Callable[..., Any]) -> Any:
    """Return the (3, L) positions that the model gives this sample, or None if it gives none.

    The function gets those of the sample's tensors that it has arguments for; token types are made
    from the model's own image and video tokens if the sample has none.
    """
    wanted = inspect.signature(get_rope_index).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in wanted.values())
    ids = sample["input_ids"].reshape(1, -1)
    given = {
        "input_ids": ids,
        "attention_mask": sample["attention_mask"].reshape(1, -1),
        "mm_token_type_ids": _token_types(sample, get_rope_index),
        **{key: sample.get(key) for key in MEDIA_KEYS if key.endswith(("_thw", "_ts"))},
    }
    named = {k: v for k, v in given.items() if v is not None and (k in wanted or takes_all)}
    positions = get_rope_index(**named)
    positions = positions[0] if isinstance(positions, tuple) else positions
    return None if positions is None else positions.reshape(3, -1)


def _text_positions(length: int) -> Any:
    """Return the (3, L) positions of plain text: all axes count together."""
    return torch.arange(length).expand(3, length)


def _token_types(sample: Tensors, get_rope_index: Callable[..., Any]) -> Any:
    types = sample.get("mm_token_type_ids")
    if types is not None:
        return types.reshape(1, -1)
    config = getattr(getattr(get_rope_index, "__self__", None), "config", None)
    ids = sample["input_ids"].reshape(1, -1)
    found = torch.zeros_like(ids)
    for number, name in ((1, "image_token_id"), (2, "video_token_id")):
        token = getattr(config, name, None)
        if token is not None:
            found[ids == token] = number
    return found


def _place(layout: Layout, samples: Sequence[Tensors], key: str, fill: int) -> Any:
    parts = [
        torch.zeros_like(sample["input_ids"]) if sample.get(key) is None else sample[key]
        for sample in samples
    ]
    return torch.from_numpy(layout.place(_joined(parts), fill, np.int64))


def _index_mask(layout: Layout, samples: Sequence[Tensors]) -> Any:
    # Padding inside a document keeps its number; a token that the sample masks out has none.
    masks = [part != 0 for part in _joined([sample["attention_mask"] for sample in samples])]
    return torch.from_numpy(layout.index_mask() * layout.place(masks, 1, np.bool_))


def _joined(parts: Sequence[Any]) -> list[NDArray[Any]]:
    # One array for all samples: joining tensors is cheaper than turning each into an array.
    return [torch.cat([torch.as_tensor(part) for part in parts]).numpy()] if parts else []


def _positions(layout: Layout, samples: Sequence[Tensors], has_mrope: bool) -> Any:
    if not has_mrope:
        return torch.from_numpy(layout.position_ids())
    parts = [_mrope_part(sample, int(n)) for sample, n in zip(samples, layout.padded)]
    if not parts:
        return torch.empty(3, 0, dtype=torch.int64)
    return torch.cat(parts, dim=1)


def _mrope_part(sample: Tensors, padded: int) -> Any:
    positions = sample.get("position_ids")
    if positions is None:
        positions = _text_positions(len(sample["input_ids"]))
    missing = padded - positions.shape[1]
    if not missing:
        return positions.to(torch.int64)
    # Padding goes on behind the largest of the three axes, as text after an image does.
    first = int(positions.max()) + 1 if positions.numel() else 0
    return torch.cat([positions.to(torch.int64), first + _text_positions(missing)], dim=1)


def _count(samples: Sequence[Tensors], grid: str) -> int:
    return sum(len(sample[grid]) for sample in samples if sample.get(grid) is not None)


def _join_media(key: str, parts: list[Any]) -> Any:
    if not parts:
        return None
    lists = [isinstance(part, list | tuple) for part in parts]
    if all(lists):
        return list(chain.from_iterable(parts))
    if any(lists):
        raise TypeError(f"{key} must be tensors in all samples of a pack, or lists in all")
    return torch.cat(parts, dim=0)


def _estimate_image_tokens(img_meta: Any, image_cfg: Config) -> int:
    """Return the tokens of an image from its [height, width]."""
    return _estimate("image", img_meta, rule_of_configs(image_cfg, None))


def _estimate_video_tokens(vid_meta: Any, video_cfg: Config) -> int:
    """Return the tokens of a video from its [total_frames, height, width, fps, duration]."""
    return _estimate("video", vid_meta, rule_of_configs(None, video_cfg))


def _estimate_sample_length(
    example: Mapping[str, Any],
    image_cfg: Config | None = None,
    video_cfg: Config | None = None,
    return_media_tokens: bool = False,
) -> int | tuple[int, int]:
    """Return all tokens of a row, with `return_media_tokens` also those of its media."""
    is_known = image_cfg is not None or video_cfg is not None
    rule = rule_of_configs(image_cfg, video_cfg) if is_known else None
    total, media = estimate_sample_length(example, rule)
    return (total, media) if return_media_tokens else total


def _estimate(kind: str, meta: Any, rule: Any) -> int:
    (size,) = given_sizes([kind], {"mm_inputs_meta": {f"{kind}s_meta": [meta]}})
    return estimate_medium(kind, size, rule)
