"""`sm.loader`: the packs of a plan as a DataLoader that can be saved, resumed and resized."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from shardmill.api import data
from shardmill.api.data import Samples, Tokens
from shardmill.api.values import Place, to_path
from shardmill.errors import ConfigError

if TYPE_CHECKING:
    from shardmill.train.dataset import PackedDataset
    from shardmill.train.loader import StepLoader, Steps
    from shardmill.train.mix import Mix


def loader(
    packs: Place | PackedDataset | Mix,
    source: Place | None = None,
    *,
    micro_batch: int = 1,
    collate: Callable[..., Any] | None = None,
    seed: int = 0,
    workers: int = 0,
    rank: int | None = None,
    world: int | None = None,
    remainder: Literal["borrow", "pad", "drop"] = "borrow",
    weights: Mapping[str, float] | None = None,
    lengths: Place | None = None,
    processor: Any = None,
    **options: Any,
) -> StepLoader:
    """Return a loader of batches of packs; `state_dict` of it resumes on any number of ranks.

    `packs` is a plan, and `source` the tokens or samples that it packs; or `packs` is a
    `PackedDataset`, or a `Mix` with its `weights`. Each rank gets `micro_batch` packs a step; ranks
    default to those of torch.distributed. `collate` is a `Collate`, by default one with its
    defaults. Samples are read for a model that takes pixels: then `processor` is its folder or its
    Hugging Face processor, and `lengths` is what `measure` wrote. Other options are those of
    torch's DataLoader.

        loader = sm.loader(plan, tokens, micro_batch=4, collate=sm.Collate(attention="4d"))
    """
    from shardmill.train.collate import Collate
    from shardmill.train.loader import StepLoader
    from shardmill.train.mix import Mix

    if isinstance(packs, str | os.PathLike):
        packs = _packed(packs, source, lengths, processor)
    split: Any = {"seed": seed, "micro_batch": micro_batch, "dp_rank": rank, "dp_world": world}
    steps: Steps
    if not isinstance(packs, Mix):
        steps = packs.sampler(remainder=remainder, **split)
    elif weights is not None:
        steps = packs.sampler(weights, **split)
    else:
        raise ConfigError("a mix needs weights, such as {'web': 2, 'chat': 1}")
    collate = Collate() if collate is None else collate
    return StepLoader(packs, steps, collate_fn=collate, num_workers=workers, **options)


def _packed(
    plan: Any, source: Place | None, lengths: Place | None, processor: Any
) -> PackedDataset:
    from shardmill.train.dataset import PackedDataset

    if source is None:
        raise ConfigError("a plan needs the tokens or samples that it packs: loader(plan, tokens)")
    opened = data.open(source)
    table = None if lengths is None else to_path(lengths)
    if isinstance(opened, Tokens):
        return PackedDataset.from_tokens(to_path(plan), opened.path, lengths=table)
    if not isinstance(opened, Samples):
        raise ConfigError(f"{opened!r} cannot be packed: give tokens, or samples")
    if processor is None:
        raise ConfigError(
            "samples are read for a model that takes pixels: give its folder as processor, or "
            "tokenize them first"
        )
    from shardmill.pack.build import BuildSpec
    from shardmill.train.pixels.reader import PixelReader

    reader = PixelReader.open(opened.path, processor)
    build = BuildSpec(positions=reader.rule)
    return PackedDataset(to_path(plan), reader, lengths=table, build=build)
