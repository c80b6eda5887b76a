"""Where the packs of a training step came from: plan, rows, shards, byte offsets, source files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shardmill.errors import ConfigError
from shardmill.model.plan import PackPlan
from shardmill.model.sample import Origin
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleDataset, open_samples
from shardmill.shards.tokens.shard import TokenDataset, open_tokens
from shardmill.train.order import NO_PACK, LoaderState, Schedule, Split
from shardmill.train.plans import Plans, pack_numbers, plans_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOrigin:
    """Where a document lies (file and bytes), and where it was taken from."""

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


class RowFinder(Protocol):
    """Says where a row of the data lies."""

    def __len__(self) -> int:
        """The number of rows."""

    def find(self, row: int) -> DocumentOrigin:
        """Return where a row lies."""


@dataclass(frozen=True, slots=True)
class TokenFinder:
    """Rows of token shards; offsets are bytes of the `.bin` file."""

    tokens: TokenDataset

    def __len__(self) -> int:
        return len(self.tokens)

    def find(self, row: int) -> DocumentOrigin:
        """Return where the ids of a row lie."""
        number, inside = self.tokens.locate(row)
        shard = self.tokens.shard(number)
        return DocumentOrigin(
            key=shard.keys[inside],
            shard=self.tokens.entries[number].name,
            row_in_shard=inside,
            path=str(shard.path),
            offset=int(shard.offsets[inside]),
            num_bytes=int(shard.lengths[inside]) * shard.data.itemsize,
            num_tokens=int(shard.lengths[inside]),
            origin=shard.origin(inside),
        )


@dataclass(frozen=True, slots=True)
class SampleFinder:
    """Samples in tars; offsets are those of the first member's content."""

    samples: SampleDataset

    def __len__(self) -> int:
        return len(self.samples)

    def find(self, row: int) -> DocumentOrigin:
        """Return where the members of a sample lie."""
        number, inside = self.samples.locate(row)
        shard = self.samples.shard(number)
        start, end = shard.index.span(inside)
        return DocumentOrigin(
            key=shard.index.keys[inside],
            shard=self.samples.entries[number].name,
            row_in_shard=inside,
            path=shard.blob.url,
            offset=start,
            num_bytes=end - start,
            origin=shard[inside].origin,
        )


def open_finder(folder: Path) -> RowFinder:
    """Return the finder of a folder of token shards or of samples."""
    manifest = open_manifest(folder)
    if manifest.content == "tokens":
        return TokenFinder(open_tokens(folder, manifest))
    return SampleFinder(open_samples(folder, manifest))


def packs_of_step(
    plan: Plans | PackPlan,
    split: Split,
    start: LoaderState,
    step: int,
    data: RowFinder | None = None,
) -> list[PackOrigin]:
    """Return what one rank trains on in a step, counted from 0 at `start`."""
    plans = plans_of(plan)
    num_rows = plans.first.num_rows
    if step < 0:
        raise ConfigError(f"steps count from 0, got {step}")
    if data is not None and len(data) != num_rows:
        raise ConfigError(f"the plan packs {num_rows} samples, the data has {len(data)}")
    schedule = Schedule(plans.size, split)
    taken = schedule.take(schedule.skip(start, step))
    numbers = pack_numbers(plans, start.seed).of(taken)
    found = zip(numbers, taken.epochs, taken.positions)
    return [_origin(plans, *place, data) for place in found]


def _origin(
    plans: Plans, number: int, epoch: int, position: int, data: RowFinder | None
) -> PackOrigin:
    if number == NO_PACK:
        return PackOrigin(NO_PACK, epoch, position, [], [])
    plan, pack = plans.find(number)
    rows: list[int] = plan[pack].tolist()
    return PackOrigin(pack, epoch, position, rows, [data.find(row) for row in rows] if data else [])
