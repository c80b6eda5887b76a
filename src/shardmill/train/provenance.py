"""Where the packs of a training step came from: plan, rows, shards, byte offsets, source files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from shardmill.errors import ConfigError
from shardmill.model.plan import LengthTable, PackPlan
from shardmill.model.sample import Origin
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleDataset, open_samples
from shardmill.shards.tokens.shard import TokenDataset, check_plan, open_tokens, read_lengths
from shardmill.storage.path import as_path
from shardmill.train.mix import MixFile, MixSampler, MixState
from shardmill.train.order import NO_PACK, EpochNumbers, LoaderState, Schedule, Split
from shardmill.train.plans import Plans

Rows: TypeAlias = TokenDataset | SampleDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOrigin:
    """Where a document lies (file and bytes), and where it was taken from.

    The bytes are the ids in a `.bin` file, or all members of a sample in a tar.
    """

    key: str
    shard: str
    row_in_shard: int
    path: str
    offset: int
    num_bytes: int
    num_tokens: int | None = None
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class PackOrigin:
    """A pack of a step: where it stood in the order, and its documents."""

    pack: int
    epoch: int
    position: int
    rows: list[int]
    documents: list[DocumentOrigin]


def open_rows(folder: Path) -> Rows:
    """Open a folder of token shards or of samples, whose rows are the documents of packs."""
    manifest = open_manifest(folder)
    if manifest.content == "tokens":
        return open_tokens(folder, manifest)
    return open_samples(folder, manifest)


def packs_of_step(
    plans: Plans,
    split: Split,
    start: LoaderState,
    step: int,
    data: Rows | None = None,
    table: LengthTable | None = None,
) -> list[PackOrigin]:
    """Return what one rank trains on in a step, counted from 0 at `start`.

    Without the `data` that the plans pack, documents are known only by their rows. Samples need the
    `table` that was measured of them; `StaleError` if the plans were made from other data.
    """
    if step < 0:
        raise ConfigError(f"steps count from 0, got {step}")
    _check_rows(plans.first, data, table)
    schedule = Schedule(plans.size, split)
    taken = schedule.take(schedule.skip(start, step))
    numbers = EpochNumbers(plans.size, partial(plans.order, start.seed)).of(taken)
    found = zip(numbers, taken.epochs, taken.positions)
    return [_origin(plans, *place, data) for place in found]


@dataclass(frozen=True, slots=True)
class MixedOrigin:
    """A step of a mix: the packs mixed before it, its weights, and its packs by their sources."""

    mixed: int
    weights: dict[str, float]
    packs: list[tuple[str, PackOrigin]]


def packs_of_mix(mix: MixFile, sampler: MixSampler, start: MixState, step: int) -> MixedOrigin:
    """Return what one rank trains on in a step of a mix, counted from 0 at `start`."""
    state = sampler.advance(start, step)
    taken = sampler.positions(state)
    data = {source: _rows_of(mix, sampler, source) for source in {one.source for one in taken}}
    packs = []
    for one in taken:
        plans, rows = sampler.plans[one.source], data[one.source]
        origin = _origin(plans, sampler.number(one), one.epoch, one.position, rows)
        packs.append((sampler.names[one.source], origin))
    return MixedOrigin(state.mixed, sampler.interleaving.weights_at(state.mixed), packs)


def _rows_of(mix: MixFile, sampler: MixSampler, source: int) -> Rows:
    found = mix.sources[sampler.names[source]]
    rows = open_rows(as_path(found.data))
    table = None if found.lengths is None else read_lengths(as_path(found.lengths))
    _check_rows(sampler.plans[source].first, rows, table)
    return rows


def _check_rows(plan: PackPlan, data: Rows | None, table: LengthTable | None) -> None:
    if isinstance(data, TokenDataset):
        check_plan(plan, data)
    elif data is not None:
        _check_samples(plan, data, table)


def _check_samples(plan: PackPlan, samples: SampleDataset, table: LengthTable | None) -> None:
    if table is None:
        raise ConfigError(
            f"{samples.folder} holds samples, whose lengths the plan knows from `shardmill "
            "measure`: name what that wrote with --lengths FOLDER"
        )
    plan.check_table(table, "the folder of --lengths")
    sizes = [(entry.name, entry.num_samples) for entry in samples.entries]
    if sizes != [*zip(table.shard_names, np.diff(table.shard_starts).tolist())]:
        raise ConfigError(
            f"the lengths were not measured of {samples.folder}: its shards have other names or "
            "other numbers of samples"
        )


def _origin(plans: Plans, number: int, epoch: int, position: int, data: Rows | None) -> PackOrigin:
    if number == NO_PACK:
        return PackOrigin(NO_PACK, epoch, position, [], [])
    plan, pack = plans.find(number)
    rows: list[int] = plan[pack].tolist()
    documents = [] if data is None else [_find(data, row) for row in rows]
    return PackOrigin(pack, epoch, position, rows, documents)


def _find(data: Rows, row: int) -> DocumentOrigin:
    number, inside = data.locate(row)
    where: dict[str, Any] = {"shard": data.entries[number].name, "row_in_shard": inside}
    if isinstance(data, TokenDataset):
        tokens = data.shard(number)
        return DocumentOrigin(
            key=tokens.keys[inside],
            path=str(tokens.path),
            offset=int(tokens.offsets[inside]),
            num_bytes=int(tokens.lengths[inside]) * tokens.data.itemsize,
            num_tokens=int(tokens.lengths[inside]),
            origin=tokens.origin(inside),
            **where,
        )
    samples = data.shard(number)
    start, end = samples.index.span(inside)
    return DocumentOrigin(
        key=samples.index.keys[inside],
        path=samples.blob.url,
        offset=start,
        num_bytes=end - start,
        origin=samples[inside].origin,
        **where,
    )
