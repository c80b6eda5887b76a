"""Data sets that the YAML of NeMo Automodel's own VLM recipe can name.

NeMo builds its loader itself, always with a DistributedSampler. Its config offers one place for
what is ours: `dataset`. A class with `build(rank, world_size)` can stand there, and a data set that
has `robust_collate` chooses how its batches are made.

    dataset:
      _target_: shardmill.nemo_recipe.PlannedPacks   # or NeatPacks
      ...
    dataloader:
      shuffle: false       # the order is ours, another for each epoch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.neat_packing import NeatPackConfig, Preset
from shardmill.train.collate import Collate
from shardmill.train.dataset import PackedDataset

MASKS = ("block_causal", "document_ids", "flash_varlen")


class _Packs(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> Any: ...
    def order(self, seed: int, epoch: int) -> NDArray[Any]: ...


@dataclass(kw_only=True)
class PlannedPacks:
    """The packs of a plan that lies on disk; the fields are those of `sm.PackedDataset`.

    `data` is the folder of the samples, with the `processor` of the model and the `lengths` that
    the plan was made from; or the folder of tokens, for a model that takes none. `collate` is
    "nemo", for attention that takes cumulative lengths or finds documents by positions that
    restart, or "nemo-thd" for Transformer Engine.
    """

    plan: str
    data: str
    processor: str | None = None
    lengths: str | None = None
    images: str | None = None
    resolution: int = 224
    collate: str = "nemo"
    length: int | None = None
    pad_id: int = 0
    seed: int = 0
    max_faults: int = 100

    builds_with_data_parallel_rank: ClassVar[bool] = True

    def build(self, *, rank: int, world_size: int) -> RecipePacks:
        """Return the packs of one rank."""
        packs = PackedDataset(
            self.plan,
            self.data,
            processor=self.processor,
            lengths=self.lengths,
            images=self.images,
            resolution=self.resolution,
            pad_id=self.pad_id,
            max_faults=self.max_faults,
        )
        make = Collate(
            self.collate, length=self.length, pad_id=self.pad_id, media_dtype=torch.bfloat16
        ).for_processor(getattr(packs.reader, "processor", None))
        return RecipePacks(packs, make, seed=self.seed, rank=rank, world_size=world_size)


@dataclass(kw_only=True)
class NeatPacks:
    """A data set of NeMo's, planned and packed by `shardmill.neat_packing`.

    `dataset` is what stood in the YAML before, and `model` the path from which its processor and
    positions come. The other fields are those of `packed_sequence:`, of the data set that NeMo
    tokenizes (`max_length`, `truncate`, `inject_fake_images`) and ours. `packed_mask_type` is what
    the attention of the model takes: "block_causal" for SDPA, "flash_varlen" for flash attention.
    """

    dataset: Mapping[str, Any]
    model: str
    processor: Mapping[str, Any] = field(default_factory=dict)
    pack_size: int = 2048
    drop_long_samples: bool = False
    max_packs: int | None = None
    packing_ratio: float = 1.0
    balance_media_tokens: bool = True
    packing_format: str = "neat"
    packed_mask_type: str = "block_causal"
    collate_max_length: int | None = None
    max_length: int | None = None
    truncate: bool = False
    inject_fake_images: bool = True
    cp_size: int = 1
    preset: Preset = "shardmill"
    max_faults: int | None = None
    seed: int = 0

    builds_with_data_parallel_rank: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.packed_mask_type not in MASKS:
            raise ConfigError(
                f"packed_mask_type must be one of {', '.join(MASKS)}, got {self.packed_mask_type!r}"
            )

    def build(self, *, rank: int, world_size: int) -> RecipePacks:
        """Return the packs of one rank; everything that reads samples is NeMo's."""
        loaders = import_module("nemo_automodel.components.datasets.loader")
        vlm = import_module("nemo_automodel.components.datasets.vlm.loader")
        fields = dict(self.dataset)
        raw = loaders.make_dataset_config(fields.pop("_target_"), fields).build()
        processor = vlm.VlmProcessorConfig(kwargs=dict(self.processor)).build(
            pretrained_model_name_or_path=self.model
        )
        if processor is None:
            raise ConfigError(f"{self.model} has no processor: give the folder of a VLM as model")
        # One try: what fails is tried again, counted and left out by us, and not replaced.
        tokenized = vlm.PreTokenizedDatasetWrapperConfig(
            max_length=self.max_length,
            max_retries=1,
            truncate=self.truncate,
            inject_fake_images=self.inject_fake_images,
        ).build(dataset=raw, processor=processor)
        pad_id = getattr(processor.tokenizer, "pad_token_id", None) or 0
        packs = NeatPackConfig(
            pack_size=self.pack_size,
            drop_long_samples=self.drop_long_samples,
            max_packs=self.max_packs,
            packing_ratio=self.packing_ratio,
            balance_media_tokens=self.balance_media_tokens,
            collate_max_length=self.collate_max_length,
            packing_format=self.packing_format,
            preset=self.preset,
            max_faults=self.max_faults,
        ).build(
            dataset=tokenized,
            padding_idx=pad_id,
            ds_raw=raw,
            get_rope_index=rope_of_model(self.model),
            processor=processor,
            cp_size=self.cp_size,
        )
        make = self._collate(vlm, pad_id)
        return RecipePacks(packs, make, seed=self.seed, rank=rank, world_size=world_size)

    def _collate(self, vlm: Any, pad_id: int) -> Callable[[list[Any]], Any]:
        settings = {"padding_idx": pad_id, "max_length": self.collate_max_length}
        if self.packing_format == "thd":
            return partial(vlm.packed_sequence_thd_vlm_collater, **settings)
        return partial(
            vlm.neat_packed_vlm_collater,
            packing=PackingContract(self.packed_mask_type),
            materialize_4d_mask=self.cp_size <= 1,
            **settings,
        )


@dataclass(frozen=True)
class PackingContract:
    """What NeMo's collater asks of a model: which mask tells its documents apart."""

    packed_mask_type: str = "block_causal"
    requires_packed_sequence_metadata: bool = False


def rope_of_model(path: str) -> Any:
    """Return the function that gives positions of three axes, None if the model has one axis.

    It needs the settings of a model only, so that no weight is loaded.
    """
    transformers = import_module("transformers")
    find = import_module("nemo_automodel._transformers.utils").resolve_get_rope_index
    config = transformers.AutoConfig.from_pretrained(path)
    with torch.device("meta"):
        return find(transformers.AutoModelForImageTextToText.from_config(config))


class RecipePacks(torch.utils.data.Dataset):  # type: ignore[misc]
    """Position in, pack out: the order of an epoch, as a DistributedSampler without shuffle asks.

    Rank r of 4 is asked for positions r, 4 + r, 8 + r ..., so that the ranks of a step get
    neighbours in the order, which cost alike. The first packs of the order fill up the last step.
    """

    def __init__(
        self,
        packs: _Packs,
        collate: Callable[[list[Any]], Any],
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not len(packs):
            raise ConfigError("the plan has no packs")
        self.packs, self.collate = packs, collate
        self.seed, self.rank, self.world_size = seed, rank, world_size
        # Shared with the workers, also with those that live on from epoch to epoch.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._order: tuple[int, NDArray[Any]] = (-1, np.empty(0))

    def __len__(self) -> int:
        return -(-len(self.packs) // self.world_size) * self.world_size

    def __getitem__(self, position: int) -> Any:
        if position % self.world_size != self.rank:
            raise ConfigError(
                f"rank {self.rank} of {self.world_size} was asked for position {position}: the "
                "loader shuffles, which undoes the balance; set dataloader.shuffle: false"
            )
        epoch = int(self._epoch)
        if self._order[0] != epoch:
            self._order = epoch, self.packs.order(self.seed, epoch)
        return self.packs[int(self._order[1][position % len(self.packs)])]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self._epoch[0] = epoch

    def robust_collate(self, collate_fn: Any) -> RecipeCollate:
        """Return how batches are made, whatever the loader would have taken."""
        return RecipeCollate(self, self.collate)


@dataclass(frozen=True)
class RecipeCollate:
    """The collate function of a loader; NeMo's recipe tells it the epoch."""

    dataset: RecipePacks
    make: Callable[[list[Any]], Any]

    def __call__(self, packs: list[Any]) -> Any:
        return self.make(packs)

    def set_epoch(self, epoch: int) -> None:
        """Tell the data set, in all workers."""
        self.dataset.set_epoch(epoch)
