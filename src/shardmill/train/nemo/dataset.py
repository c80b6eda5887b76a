"""NeMo's lazily packed data set on our planner and builder: plan at once, build packs when asked.

The plan costs milliseconds and holds two flat arrays that workers share. A sample that cannot be
read is tried again and then left out; one that turns out longer than its estimate is left out;
both are counted in `dropped`, by reason. Nothing is replaced by a random other sample.

A shuffling sampler would mix packs of unlike cost into one step: `balanced_sampler` shuffles
without that, for any number of ranks.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.rng import mix
from shardmill.packing.order import EpochOrder, shuffled
from shardmill.train.nemo.build import (
    build_packed_sample,
    mrope_position_ids,
    shift_sample,
    text_positions,
)
from shardmill.train.nemo.plan import PackBins, estimate_lengths, ordered, plan_lengths

logger = logging.getLogger(__name__)

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

GetRopeIndex = Callable[..., Any]


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
        return build_packed_sample(
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
            positions = mrope_position_ids(sample, self.get_rope_index)
            if positions is None:
                positions = text_positions(len(sample["input_ids"]))
            sample = {**sample, "position_ids": positions}
        return shift_sample(sample, self.has_mrope)

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
        positions = np.arange(len(self)) * self.num_replicas + self.rank
        return iter(order[positions % max(1, len(order))].tolist())

    def _order(self) -> NDArray[Any]:
        bins = self.dataset.bins
        if isinstance(bins, PackBins):
            return EpochOrder(bins.plan, seed=self.seed, epoch=self.epoch).all_packs()
        return shuffled(len(bins), mix(self.seed, self.epoch))


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
        PackBins(ordered(plan) if balance_media_tokens else plan),
        pack_size,
        padding_idx,
        sequence_alignment,
        get_rope_index,
    )
    if too_long.any():
        packed.dropped["estimated longer than a pack"] = int(too_long.sum())
        logger.warning("left out %d samples longer than a pack", int(too_long.sum()))
    return packed
