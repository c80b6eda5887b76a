"""Where the packs of a training step came from: plan, rows, shards, byte offsets, source files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from shardmill.errors import ConfigError
from shardmill.model.sample import Origin
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleDataset, open_samples
from shardmill.shards.tokens.shard import TokenDataset, open_tokens
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
    plans: Plans, split: Split, start: LoaderState, step: int, data: Rows | None = None
) -> list[PackOrigin]:
    """Return what one rank trains on in a step, counted from 0 at `start`.

    Without the `data` that the plans pack, documents are known only by their rows.
    """
    num_rows = plans.first.num_rows
    if step < 0:
        raise ConfigError(f"steps count from 0, got {step}")
    if data is not None and len(data) != num_rows:
        raise ConfigError(f"the plan packs {num_rows} samples, the data has {len(data)}")
    schedule = Schedule(plans.size, split)
    taken = schedule.take(schedule.skip(start, step))
    numbers = EpochNumbers(plans.size, partial(plans.order, start.seed)).of(taken)
    found = zip(numbers, taken.epochs, taken.positions)
    return [_origin(plans, *place, data) for place in found]


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
