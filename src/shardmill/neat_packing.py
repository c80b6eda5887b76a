"""Drop-in for NeMo Automodel's neat packing: change one import, keep every call.

    from shardmill.neat_packing import neat_pack_dataset_vlm

The names, arguments, keys and dtypes of nemo_automodel.components.datasets.vlm.neat_packing_vlm and
of llm.neat_packing. The plan is made at once, in milliseconds and near the lower bound; packs are
built when they are asked for. With `preset="nemo"` lengths, packs and their order are NeMo's own.

A sample that cannot be read is tried again and then left out, as is one that is longer than a pack;
too many of them stop the run with their list, in whichever worker they were found. One that turns
out longer than its estimate is left out and counted in `dropped`. Nothing is replaced by a random
other sample.

A shuffling DistributedSampler would mix packs of unlike cost into one step; `balanced_sampler`
shuffles without that, for any number of ranks. `nemo_recipe` has what a YAML of NeMo's own recipe
can name.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.errors import ConfigError, ShardmillError, StaleError, need
from shardmill.model.rng import mix
from shardmill.packing.build import NO_LABEL, lay_out
from shardmill.packing.order import EpochOrder, shuffled
from shardmill.train.health import Health, SampleFault, TooManyFaults
from shardmill.train.nemo.lengths import (
    Config,
    Ints,
    PackBins,
    estimate,
    estimate_as_nemo,
    greedy_knapsack,
    greedy_knapsack_vt_balanced,
    nemo_config,
    nemo_image_tokens,
    nemo_video_tokens,
    ordered,
    plan_lengths,
    read_rows,
    rule_of,
)
from shardmill.train.nemo.packs import (
    MEDIA_KEYS,
    GetRopeIndex,
    Tensors,
    aligned_length,
    build_packed_sample,
    empty_sample,
    mrope_position_ids,
    shift_sample,
)

__all__ = [
    "CROSS_ENTROPY_IGNORE_IDX",
    "MEDIA_KEYS",
    "BalancedPackSampler",
    "NeatPackConfig",
    "PackedDatasetWrapper",
    "PackedDatasetWrapperConfig",
    "_aligned_length",
    "_build_packed_sample",
    "_build_packed_vlm_sample",
    "_compute_mrope_position_ids",
    "_estimate_image_tokens",
    "_estimate_sample_length",
    "_estimate_video_tokens",
    "_shift_sample",
    "greedy_knapsack",
    "greedy_knapsack_vt_balanced",
    "neat_pack_dataset",
    "neat_pack_dataset_vlm",
]

logger = logging.getLogger(__name__)

CROSS_ENTROPY_IGNORE_IDX = NO_LABEL
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
# Samples that may be lost without a word from the user: one in so many, and never more than this.
FAULT_SHARE, MOST_FAULTS = 100, 100
ESTIMATED_TOO_LONG = "estimated longer than a pack"

Preset = Literal["shardmill", "nemo"]
PRESETS = ("shardmill", "nemo")

_aligned_length = aligned_length
_shift_sample = shift_sample
_compute_mrope_position_ids = mrope_position_ids


@dataclass
class NeatPackConfig:
    """How a VLM data set is packed: NeMo's fields, then `preset` and `max_faults` of ours."""

    pack_size: int = 2048
    drop_long_samples: bool = False
    max_packs: int | None = None
    packing_ratio: float = 1.0
    balance_media_tokens: bool = True
    collate_max_length: int | None = None
    attn_implementation: str | None = None
    packing_format: str = "neat"
    preset: Preset = "shardmill"
    max_faults: int | None = None

    def __post_init__(self) -> None:
        if self.packing_format not in ("neat", "thd"):
            raise ValueError(f"packing_format must be 'neat' or 'thd', got {self.packing_format!r}")

    def build(
        self,
        *,
        dataset: Any,
        padding_idx: int,
        ds_raw: Any = None,
        get_rope_index: GetRopeIndex | None = None,
        processor: Any = None,
        cp_size: int = 1,
    ) -> PackedDatasetWrapper:
        """Return the packed data set; with "thd", documents are aligned for context parallelism."""
        if cp_size < 1:
            raise ValueError(f"cp_size must be at least 1, got {cp_size}")
        alignment = 2 * cp_size if self.packing_format == "thd" and cp_size > 1 else 1
        if self.collate_max_length is not None and self.collate_max_length % alignment:
            raise ValueError(
                f"collate_max_length {self.collate_max_length} must be a multiple of 2 x cp_size, "
                f"{alignment}"
            )
        return neat_pack_dataset_vlm(
            dataset,
            self.pack_size,
            padding_idx,
            self.drop_long_samples,
            self.max_packs,
            get_rope_index,
            ds_raw,
            self.packing_ratio,
            processor,
            self.balance_media_tokens,
            alignment,
            preset=self.preset,
            max_faults=self.max_faults,
        )


@dataclass
class PackedDatasetWrapperConfig:
    """The settings of a `PackedDatasetWrapper` that are known before its data."""

    pack_size: int = 2048
    sequence_alignment: int = 1
    max_retries: int = 10
    max_faults: int | None = None

    def build(
        self,
        *,
        inner_dataset: Any,
        bins: Sequence[Sequence[int]],
        padding_idx: int,
        get_rope_index: GetRopeIndex | None = None,
    ) -> PackedDatasetWrapper:
        """Return the packed data set of these packs."""
        return PackedDatasetWrapper(
            inner_dataset,
            bins,
            self.pack_size,
            padding_idx,
            self.sequence_alignment,
            get_rope_index,
            self.max_retries,
            self.max_faults,
        )


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
    *,
    preset: Preset = "shardmill",
    max_faults: int | None = None,
) -> PackedDatasetWrapper:
    """Return the lazily packed data set; `ds_raw` gives the lengths without tokenizing.

    Without it every sample is read once to measure it. `packing_ratio` is the share of a pack that
    is planned, so that estimates may be wrong by the rest. Packs come in an order of like cost,
    unless `balance_media_tokens` is False. `preset="nemo"` makes NeMo's own packs in its order.
    `max_faults` samples may be lost, by default one in a hundred and at most 100.
    """
    if preset not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    aligned_length(0, sequence_alignment)
    capacity = int(pack_size * packing_ratio)
    if capacity < sequence_alignment:
        raise ConfigError(
            f"pack_size {pack_size} x packing_ratio {packing_ratio} leaves {capacity} tokens, "
            f"less than sequence_alignment {sequence_alignment}"
        )
    if ds_raw is not None and len(ds_raw) != len(dataset):
        raise ConfigError(f"ds_raw has {len(ds_raw)} rows, the data set {len(dataset)}")
    packed = PackedDatasetWrapper(
        dataset,
        (),
        pack_size,
        padding_idx,
        sequence_alignment,
        get_rope_index,
        max_faults=max_faults,
    )
    # A sample loses a place by the shift of its labels.
    total, visual = _lengths(packed, ds_raw, processor, preset)
    lengths = np.maximum(total - 1, 0)
    aligned = -(-lengths // sequence_alignment) * sequence_alignment
    too_long = (aligned > pack_size) & drop_long_samples
    if preset == "nemo":
        packed.bins = _nemo_packs(
            np.minimum(aligned, capacity), visual, ~too_long, capacity, balance_media_tokens
        )[:max_packs]
    else:
        # A sample whose estimate exceeds a pack gets one of its own: the estimate may be wrong.
        room = capacity // sequence_alignment * sequence_alignment
        usable = np.clip(lengths, 1, room)
        plan = plan_lengths(usable, visual, too_long, capacity, max_packs, sequence_alignment)
        packed.bins = PackBins(ordered(plan) if balance_media_tokens else plan, dataset)
    if too_long.any():
        packed.planned_out = int(too_long.sum())
        logger.warning("left out %d samples longer than a pack", packed.planned_out)
    return packed


def _lengths(
    packed: PackedDatasetWrapper, ds_raw: Any, processor: Any, preset: Preset
) -> tuple[Ints, Ints]:
    if ds_raw is None:
        return _measure(packed)
    if processor is None:
        logger.warning("no processor: media of unknown rules count as 500 tokens each")
    is_list = isinstance(ds_raw, list | tuple)
    rows = read_rows(ds_raw if is_list else map(ds_raw.__getitem__, range(len(ds_raw))))
    if preset == "nemo":
        image, video = (nemo_config(processor, kind) for kind in ("image", "video"))
        return estimate_as_nemo(rows, image, video)
    return estimate(rows, None if processor is None else rule_of(processor))


def _measure(packed: PackedDatasetWrapper) -> tuple[Ints, Ints]:
    # Tokenizing everything takes long, but half a pack for each would be wrong for nearly all.
    size = len(packed.inner)
    logger.warning("no ds_raw: %d samples are read once to measure them", size)
    counts = np.ones((size, 2), np.int64)
    for number in range(size):
        sample = packed.read_sample(number, -1)
        if sample is not None:
            types = sample.get("mm_token_type_ids")
            visual = 0 if types is None else int((torch.as_tensor(types) > 0).sum())
            counts[number] = len(sample["input_ids"]), visual
    return counts[:, 0], counts[:, 1]


def _nemo_packs(
    lengths: Ints, visual: Ints, kept: NDArray[np.bool_], capacity: int, balanced: bool
) -> list[list[int]]:
    rows = np.flatnonzero(kept)
    lengths, visual = lengths[rows], visual[rows]
    if balanced and visual.any():
        packs = greedy_knapsack_vt_balanced(lengths, capacity, visual)
    else:
        packs = greedy_knapsack(lengths, capacity)
    return packs if len(rows) == len(kept) else [rows[pack].tolist() for pack in packs]


class PackedDatasetWrapper(torch.utils.data.Dataset):  # type: ignore[misc]
    """Packs that are tokenized and built in `__getitem__`, which runs in loader workers.

    `dropped` counts what was left out, by reason, and `faults` lists it, in all workers. More than
    `max_faults` samples that cannot be read or are longer than a pack raise `TooManyFaults`.
    """

    def __init__(
        self,
        inner_dataset: Any,
        bins: Sequence[Sequence[int]],
        pack_size: int,
        padding_idx: int = 0,
        sequence_alignment: int = 1,
        get_rope_index: GetRopeIndex | None = None,
        max_retries: int = 10,
        max_faults: int | None = None,
    ) -> None:
        if isinstance(bins, PackBins) and not bins.are_of(inner_dataset):
            raise StaleError(
                f"these packs of {bins.plan.num_rows} samples were planned for another data set "
                f"than this one of {len(inner_dataset)}: plan it with neat_pack_dataset_vlm, or "
                "give list(bins) if its rows are the same"
            )
        aligned_length(0, sequence_alignment)
        if max_faults is None:
            max_faults = min(MOST_FAULTS, len(inner_dataset) // FAULT_SHARE)
        self.inner = inner_dataset
        self.bins = bins
        self.pack_size = pack_size
        self.padding_idx = padding_idx
        self.sequence_alignment = sequence_alignment
        self.get_rope_index = get_rope_index
        self.has_mrope = get_rope_index is not None
        self.max_retries = max_retries
        self.health = Health(max_faults)
        self.planned_out = 0

    def __len__(self) -> int:
        return len(self.bins)

    def __getitem__(self, pack_idx: int) -> dict[str, Any]:
        """Build one pack: tokenize, shift and join its samples."""
        samples: list[dict[str, Any]] = []
        room = self.pack_size
        # Planned by estimates, so that a sample may be longer than the room that is left.
        for number in self.bins[pack_idx]:
            sample = self.read_sample(int(number), pack_idx)
            if sample is None:
                continue
            sample = shift_sample(sample, self.has_mrope)
            taken = aligned_length(len(sample["input_ids"]), self.sequence_alignment)
            if taken > self.pack_size:
                what = f"{taken} of {self.pack_size} tokens"
                self._add_fault("longer than a pack", pack_idx, int(number), what)
            elif taken > room:
                what = f"{taken} tokens, {room} are free"
                fault = _fault("longer than planned", pack_idx, int(number), what)
                logger.warning("left out %s", fault)
                self.health.leave_out(fault)
            else:
                room -= taken
                samples.append(sample)
        return build_packed_sample(
            samples or [empty_sample(self.has_mrope)],
            self.padding_idx,
            self.has_mrope,
            self.sequence_alignment,
        )

    @property
    def dropped(self) -> Counter[str]:
        """How many samples were left out so far, by reason, in all workers and by the plan."""
        found = Counter(fault.reason.partition(":")[0] for fault in self.faults())
        found[ESTIMATED_TOO_LONG] = self.planned_out
        return +found

    def faults(self) -> list[SampleFault]:
        """Return the samples that were left out so far, in all workers."""
        return self.health.faults() + self.health.left_out()

    def robust_collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Return a collate function that tries again with other packs when a batch fails.

        Which packs follows from the attempt alone, so that a run can be repeated.
        """

        def collate(batch: list[Any]) -> Any:
            for attempt in range(self.max_retries):
                try:
                    return collate_fn(batch)
                except SAMPLE_ERRORS as error:
                    logger.warning("a batch does not collate: %r", error)
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

    def order(self, seed: int, epoch: int) -> NDArray[Any]:
        """Return all packs in the order of an epoch, neighbours of like cost."""
        if isinstance(self.bins, PackBins):
            return EpochOrder(self.bins.plan, seed=seed, epoch=epoch).all_packs()
        return shuffled(len(self.bins), mix(seed, epoch))

    def read_sample(self, number: int, pack_idx: int) -> dict[str, Any] | None:
        """Return a sample with the positions of its model; None if it cannot be read."""
        problem = ""
        for _ in range(max(1, self.max_retries)):
            try:
                sample = self.inner[number]
                if self.get_rope_index is not None:
                    positions = mrope_position_ids(sample, self.get_rope_index)
                    sample = {**sample, "position_ids": positions}
                return dict(sample)
            except TooManyFaults:
                raise
            except SAMPLE_ERRORS as error:
                problem = repr(error)
        self._add_fault("cannot be read", pack_idx, number, problem)
        return None

    def _add_fault(self, reason: str, pack_idx: int, number: int, detail: str) -> None:
        fault = _fault(reason, pack_idx, number, detail)
        logger.warning("left out %s", fault)
        self.health.add(fault)


def _fault(reason: str, pack_idx: int, number: int, detail: str) -> SampleFault:
    return SampleFault(pack_idx, number, f"sample {number}", f"{reason}: {detail}")


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
        order = self.dataset.order(self.seed, self.epoch)
        # Rank r of 4 takes positions r, 4 + r, 8 + r: packs of one step are neighbours in the
        # order, and neighbours cost alike.
        positions = np.arange(len(self)) * self.num_replicas + self.rank
        return iter(order[positions % max(1, len(order))].tolist())


def _build_packed_vlm_sample(
    samples: Sequence[Tensors],
    pack_size: int,
    padding_idx: int,
    has_mrope: bool = False,
    sequence_alignment: int = 1,
) -> dict[str, Any]:
    """Return one packed sample of shifted samples, not padded to `pack_size`."""
    return build_packed_sample(samples, padding_idx, has_mrope, sequence_alignment)


def _estimate_image_tokens(img_meta: Any, image_cfg: Config) -> int:
    """Return NeMo's tokens of an image from its [height, width]."""
    return int(nemo_image_tokens(_sizes(img_meta, 2), image_cfg)[0])


def _estimate_video_tokens(vid_meta: Any, video_cfg: Config) -> int:
    """Return NeMo's tokens of a video from its [total_frames, height, width, fps, duration]."""
    return int(nemo_video_tokens(_sizes(vid_meta, 5), video_cfg)[0])


def _sizes(meta: Any, num: int) -> NDArray[np.float64]:
    return np.array([[float(meta[place]) for place in range(num)]])


def _estimate_sample_length(
    example: Mapping[str, Any],
    image_cfg: Config | None = None,
    video_cfg: Config | None = None,
    return_media_tokens: bool = False,
) -> int | tuple[int, int]:
    """Return NeMo's tokens of a row, with `return_media_tokens` also those of its media."""
    total, media = estimate_as_nemo(read_rows([example]), image_cfg, video_cfg)
    return (int(total[0]), int(media[0])) if return_media_tokens else int(total[0])


def neat_pack_dataset(
    dataset: Any,
    split: str,
    pack_size: int,
    max_packs: int | None = None,
    padding_idx: int = 0,
    drop_long_samples: bool = False,
) -> Any:
    """Return a `datasets.Dataset` of text packs, as NeMo's LLM packer makes them.

    Samples have `input_ids` and `labels`, shifted already, and perhaps a `loss_mask`. Each pack is
    padded to `pack_size`. Longer samples raise ValueError, or are left out on request.
    """
    datasets = need("datasets", extra="train")
    samples = [_masked(sample) for sample in _split(dataset, split)]
    lengths = np.array([len(ids) for ids, _ in samples], np.int64)
    too_long = lengths > pack_size
    if too_long.any() and not drop_long_samples:
        raise ValueError(
            f"sample {int(too_long.argmax())} has {int(lengths[too_long.argmax()])} tokens, more "
            f"than the {pack_size} of a pack: set drop_long_samples=True or a larger pack_size"
        )
    packs = greedy_knapsack(lengths, pack_size)[:max_packs]
    if not packs:
        raise ValueError(f"no sample of {len(samples)} fits into a pack of {pack_size} tokens")
    columns: dict[str, list[Any]] = {}
    for pack in packs:
        chosen = [samples[number] for number in pack]
        for key, value in _padded_pack(chosen, pack_size, padding_idx).items():
            columns.setdefault(key, []).append(value)
    return datasets.Dataset.from_dict(columns)


def _build_packed_sample(
    samples: Sequence[Tensors], pack_size: int, padding_idx: int
) -> dict[str, Any]:
    """Return one pack of text samples, padded to `pack_size`."""
    pairs = [(np.asarray(s["input_ids"]), np.asarray(s["labels"])) for s in samples]
    made = _padded_pack(pairs, pack_size, padding_idx)
    return {key: torch.from_numpy(value) for key, value in made.items()}


def _padded_pack(
    samples: Sequence[tuple[NDArray[Any], NDArray[Any]]], pack_size: int, padding_idx: int
) -> dict[str, NDArray[np.int64]]:
    layout = lay_out([len(ids) for ids, _ in samples])
    places = {
        "input_ids": (
            layout.place([ids for ids, _ in samples], padding_idx, np.int64),
            padding_idx,
        ),
        "labels": (layout.place([labels for _, labels in samples], NO_LABEL, np.int64), NO_LABEL),
        "attention_mask": (layout.index_mask(), 0),
        "position_ids": (layout.position_ids(), 0),
    }
    rest = max(0, pack_size - layout.size)
    return {
        key: np.concatenate([value, np.full(rest, fill, np.int64)]).astype(np.int64)
        for key, (value, fill) in places.items()
    }


def _split(dataset: Any, split: str) -> Any:
    # A single data set, or a list, has no splits: its keys are columns, or none.
    try:
        return dataset[split]
    except (KeyError, TypeError, ValueError, IndexError):
        if isinstance(dataset, Mapping):
            known = ", ".join(map(str, dataset))
            raise ConfigError(f"the data set has no split {split!r}, only {known}") from None
        return dataset


def _masked(sample: Tensors) -> tuple[NDArray[Any], NDArray[Any]]:
    ids, labels = np.asarray(sample["input_ids"]), np.asarray(sample["labels"])
    mask = sample.get("loss_mask")
    return ids, labels if mask is None else np.where(np.asarray(mask) != 0, labels, NO_LABEL)
