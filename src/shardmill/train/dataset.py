"""Data sets by number: packs, built when they are asked for, or single rows of tokens.

The documents of a pack are read, laid out by `pack.build` (the function that also writes packs to
disk) and returned with the tensors of their media, in whichever worker is asked. A document that
cannot be read, or is not as long as planned, is left out: its place becomes padding at the end of
the pack. It is named in the log and counted against `max_faults`; no other document ever takes its
place.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.plan import LengthTable, PackPlan
from shardmill.model.tokenrow import PositionRule, cut_row
from shardmill.packing.build import BuildSpec, build_pack
from shardmill.shards.ledger import open_manifest
from shardmill.shards.tokens.shard import TokenDataset, check_plan, open_tokens, read_lengths
from shardmill.storage.path import AnyPath, as_path
from shardmill.train.documents import (
    ImageReader,
    RowReader,
    TokenReader,
    TrainPack,
    TrainRow,
    VerifiedReader,
    join_tensors,
    tokens_behind,
)
from shardmill.train.health import Health, SampleFault
from shardmill.train.order import NO_PACK, Remainder, StepSampler, split_of
from shardmill.train.plans import EpochPlans, OnePlan, Plans
from shardmill.train.samples import keep_freed_memory
from shardmill.train.staging import Staging

log = logging.getLogger(__name__)

# What is the fault of one sample; anything else is a bug, or a machine that gives up.
UNREADABLE = (SampleError, FormatError, OSError)
SECONDS = "second_per_grid_ts"


class PackedDataset(Dataset[TrainPack]):  # type: ignore[misc]
    """Pack number in, pack out.

    `plan` is the file of a plan (each worker maps it; the arrays of a `PackPlan` would be copied to
    each). `data` is the folder of token shards that it packs, or of samples if a `processor` (a
    Hugging Face processor or the folder of a model) makes tokens and pixels of them, or any
    `RowReader`. `lengths` is what the plan was made from, a file or the folder it lies in; samples
    need it, tokens know their own. `positions` is the visual rule of a model whose positions are
    not 0, 1, 2, by default that of the processor. `images` is the folder of the samples that tokens
    were made from, for models that put images into placeholders: packs then have `pixel_values`,
    uint8 squares of `resolution` pixels a side.

    `epoch_plans` is a folder for the plans of later epochs, made one by one while training goes on;
    without it one plan serves all epochs, and a document keeps its neighbours. `staged_dir` is a
    folder, such as in /dev/shm, to which shards are copied meanwhile, at most `staged_bytes` of
    them; `staging.wait()` waits for the copies. More than `max_faults` samples that cannot be read
    stop the training.

    `verify` is the share of rows, 0.01 for one in a hundred, that are compared with the checksums
    that they were written with before they are used: ids, loss, spans and media. A bit that changed
    on a disk since then raises `Damaged` with file, row and bytes. It is no fault of one row that
    could be left out: where one bit changed, others have.

    Raises `ConfigError` if the plan packs another number of samples, `StaleError` if it was made
    from other lengths than those of the data. This is checked once, here, and not in workers.

        packs = sm.PackedDataset("packs.plan", "tokens", epoch_plans="plans")
    """

    def __init__(
        self,
        plan: PackPlan | AnyPath,
        data: RowReader | TokenDataset | AnyPath,
        *,
        processor: Any = None,
        images: AnyPath | None = None,
        resolution: int = 224,
        lengths: LengthTable | AnyPath | None = None,
        positions: PositionRule | None = None,
        pad_id: int = 0,
        epoch_plans: AnyPath | None = None,
        staged_dir: AnyPath | None = None,
        staged_bytes: int | None = None,
        max_faults: int = 100,
        verify: float = 0.0,
    ) -> None:
        if not 0 <= verify <= 1:
            raise ConfigError(f"verify is a share of the rows, 0 to 1, got {verify}")
        if staged_dir is None and staged_bytes is not None:
            raise ConfigError("staged_bytes bounds the copies in staged_dir: give that, too")
        if max_faults < 0 or (staged_bytes or 0) < 0:
            raise ConfigError("max_faults and staged_bytes must be at least 0")
        if staged_dir is not None and not isinstance(data, str | os.PathLike):
            raise ConfigError("staged_dir takes copies of a folder: give the folder as the data")
        self.plans = _plans(plan, data if lengths is None else lengths, epoch_plans)
        self.reader = _reader(data, processor, images, resolution, lengths, staged_dir)
        if verify and not hasattr(self.reader, "verify"):
            raise ConfigError(f"verify: {type(self.reader).__name__} has no checksums to compare")
        # The first row of every worker, then one row in so many.
        self.verify, self._due = verify, 1.0 - verify
        self.health = Health(max_faults)
        self._lengths = lengths if isinstance(lengths, LengthTable | None) else as_path(lengths)
        self._open()
        first = self.plans.first
        if len(self.reader) != first.num_rows:
            raise ConfigError(
                f"the plan packs {first.num_rows} samples, the data has {len(self.reader)}: this "
                "is the plan of another data set"
            )
        # Here and not in `_open`, so that no worker does it again.
        if self.table is not None:
            place = self._lengths if isinstance(self._lengths, Path) else "the table"
            first.check_table(self.table, place)
        elif (tokens := tokens_behind(self.reader)) is not None:
            check_plan(first, tokens)
        if positions is None:
            positions = getattr(self.reader, "rule", None)
        self.build = BuildSpec(alignment=first.spec.alignment, pad_id=pad_id, positions=positions)
        self.digest = self.plans.digest(self.reader.shards)
        self.plan_checksum = first.checksum
        # As at the beginning: a reader that finds media otherwise leaves the next ones out of it.
        self.levels = getattr(self.reader, "levels", None)
        # Whether pixels stay uint8 because the loader makes floats of them on its device.
        self.in_levels = False
        # Last, so that nothing is copied for a data set that is refused.
        self.staging = None
        if staged_dir is not None and isinstance(data, str | os.PathLike):
            self.staging = Staging(data, staged_dir, max_bytes=staged_bytes)

    def __len__(self) -> int:
        return self.plans.size(0)

    def __getitem__(self, number: int) -> TrainPack:
        if number == NO_PACK:  # a place of a step that is padded
            return TrainPack(NO_PACK, build_pack([], self.build, samples=[]), {})
        plan, place = self.plans.find(number)
        return self.pack_of(number, plan, plan[place])

    def pack_of(self, number: int, plan: PackPlan, members: NDArray[np.uint32]) -> TrainPack:
        """Return the pack of these rows, which are all or some of those of a pack of the plan."""
        rows = self._read_all(number, plan, members)
        kept = np.array(sorted(rows), np.int64)
        found = [rows[place] for place in kept.tolist()]
        pack = build_pack(
            [one.row for one in found],
            self.build,
            samples=members[kept],
            positions=self._positions(found),
        )
        return TrainPack(number, pack, self._joined([one.tensors for one in found]))

    def __getstate__(self) -> dict[str, Any]:
        # Workers map the lengths themselves, and read copies that this process makes.
        return {**self.__dict__, "table": None, "staging": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def sampler(
        self,
        *,
        seed: int = 0,
        batch_size: int = 1,
        rank: int | None = None,
        world: int | None = None,
        remainder: Remainder = "borrow",
    ) -> StepSampler:
        """Return the batch sampler of this rank; ranks default to those of torch.distributed."""
        split = split_of(rank, world, batch_size, remainder)
        order_of = partial(self.plans.order, seed)
        made_of = {"digest": self.digest, "plan": self.plan_checksum}
        return StepSampler(self.plans.size, order_of, split, seed=seed, **made_of)

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return all packs in the order of an epoch."""
        return self.plans.order(seed, epoch)(np.arange(self.plans.size(epoch)))

    @property
    def is_remote(self) -> bool:
        """Whether the data lie in a store, so that it helps to announce packs."""
        return self.reader.is_remote

    def announce(self, numbers: Sequence[int]) -> None:
        """Have the documents of these packs fetched from the store."""
        for number in numbers:
            if number != NO_PACK:
                plan, place = self.plans.find(number)
                self.reader.prefetch(plan[place].tolist())

    def faults(self) -> list[SampleFault]:
        """Return the samples that could not be read so far, in all workers."""
        return self.health.faults()

    def describe(self, row: int) -> str:
        """Return shard and place of a row."""
        return self.reader.describe(row)

    def _open(self) -> None:
        keep_freed_memory()
        lengths = self._lengths
        self.table = read_lengths(lengths) if isinstance(lengths, Path) else lengths

    def _read_all(self, number: int, plan: PackPlan, members: Any) -> dict[int, TrainRow]:
        info = get_worker_info()
        worker = 0 if info is None else info.id + 1
        rows, room = {}, plan.spec.capacity
        self.reader.prefetch(members.tolist())
        for place, row in enumerate(members.tolist()):
            self.health.reading(worker, number, row)
            try:
                found = self._fitted(row, room, plan)
            except UNREADABLE as error:
                fault = SampleFault(number, row, self.reader.describe(row), str(error))
                log.warning("process %d cannot read %s", os.getpid(), fault)
                self.health.add(fault)
                continue
            rows[place] = found
            # Documents begin at multiples of the alignment, so one of 13 takes 16 with 8.
            room -= -(-len(found.row.ids) // self.build.alignment) * self.build.alignment
        self.health.resting(worker)
        return rows

    def _fitted(self, row: int, room: int, plan: PackPlan) -> TrainRow:
        self._due += self.verify
        if self._due >= 1:
            self._due -= 1
            cast("VerifiedReader", self.reader).verify(row)
        read = self.reader.read(row)
        found = len(read.row.ids)
        planned = self._planned(row, found, plan)
        if (found if planned is None else planned) > room:
            reason = "longer than its estimate" if planned is None else "does not fit into its pack"
            raise SampleError(reason, f"{found} tokens, {room} are free")
        if planned is None:
            return read
        return read if planned == found else replace(read, row=cut_row(read.row, planned))

    def _planned(self, row: int, found: int, plan: PackPlan) -> int | None:
        # None: the plan was made from estimates, so any length that fits is as good.
        if self.table is None:
            if not len(plan.cut_rows):
                return found
            place = int(np.searchsorted(plan.cut_rows, row))
            is_cut = place < len(plan.cut_rows) and int(plan.cut_rows[place]) == row
            return int(plan.cut_lengths[place]) if is_cut else found
        measured = int(self.table.num_tokens[row])
        if self.table.exact and found != measured:
            raise SampleError("not as long as planned", f"{found} tokens, planned {measured}")
        planned = int(plan.lengths_of(np.array([row], np.uint32), self.table)[0])
        return planned if self.table.exact or planned < measured else None

    def _joined(self, tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        levels = self.levels
        if levels is None:
            return join_tensors(tensors)
        # Some media may have gone through the processor: they are floats already.
        dtypes = ({own[n].dtype for own in tensors if n in own} for n in levels.normals)
        if any(len(found) > 1 for found in dtypes):
            tensors = [levels.finish(own) for own in tensors]
        joined = join_tensors(tensors)
        return joined if self.in_levels else dict(levels.finish(joined))

    def _positions(self, rows: list[TrainRow]) -> list[NDArray[np.int64]] | None:
        # Only the processor knows the seconds between the patches of a video.
        rule = self.build.positions
        if rule is None:
            return None
        return [
            rule.positions(one.row, np.asarray(one.tensors.get(SECONDS, ())).tolist())
            for one in rows
        ]


def _plans(plan: PackPlan | AnyPath, lengths: object, epoch_plans: AnyPath | None) -> Plans:
    if epoch_plans is None:
        return OnePlan(plan)
    if isinstance(plan, PackPlan) or not isinstance(lengths, str | os.PathLike):
        raise ConfigError(
            "epoch_plans are made by another process: give the file of the plan, and the file or "
            "folder of its lengths"
        )
    return EpochPlans(plan, lengths, epoch_plans)


def _reader(
    data: RowReader | TokenDataset | AnyPath,
    processor: Any,
    images: AnyPath | None,
    resolution: int,
    lengths: object,
    staged_dir: AnyPath | None,
) -> RowReader:
    if isinstance(data, TokenDataset):
        data = TokenReader(data)
    if not isinstance(data, str | os.PathLike):
        if processor is not None or images is not None:
            raise ConfigError("processor and images need the folder of the data, not a reader")
        return data
    if processor is not None and images is not None:
        raise ConfigError("a processor makes pixels itself: images are for folders of tokens")
    if processor is not None and _holds_tokens(as_path(data)):
        raise ConfigError(f"{data} holds tokens: a processor is for samples, leave it out")
    if processor is not None and lengths is None:
        raise ConfigError(
            "a plan over samples was made from lengths that were measured: give their folder as "
            "lengths, so that the plan of other samples is not taken for this one"
        )
    staged = None if staged_dir is None else as_path(staged_dir)
    if images is not None:
        return ImageReader.open(data, images, resolution, staged)
    if processor is None:
        if open_manifest(as_path(data)).content == "samples":
            raise ConfigError(
                f"{data} holds samples: give the processor of a model that takes pixels, or "
                "tokenize them first"
            )
        return TokenReader.open(data, staged)
    from shardmill.train.pixels.reader import PixelReader

    return PixelReader.open(as_path(data), processor, staged_dir=staged)


def _holds_tokens(folder: Path) -> bool:
    return (folder / "manifest.json").exists() and open_manifest(folder).content == "tokens"


class _MappedIds(NamedTuple):
    """A shard's ids, and the lookups of where its rows begin and how long they are."""

    ids: Any
    offset: Callable[[int], int]
    length: Callable[[int], int]
    itemsize: int


class RowDataset(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Row number in, ids out, as int32 or as `dtype`.

    For shards whose rows are whole packs, or for models without packing. Nothing is laid out: the
    ids of a row are copied out of the mapped file into a tensor of their own.
    """

    def __init__(self, tokens: TokenDataset | AnyPath, dtype: torch.dtype = torch.int32) -> None:
        if not isinstance(tokens, TokenDataset):
            tokens = open_tokens(as_path(tokens))
        self.tokens, self.dtype = tokens, dtype
        self._numpy = np.dtype(str(dtype).removeprefix("torch."))
        self._starts = np.cumsum([0, *(entry.num_samples for entry in tokens.entries)]).tolist()
        self._mapped: dict[int, _MappedIds] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, number: int) -> torch.Tensor:
        shard = bisect_right(self._starts, number) - 1
        mapped = self._mapped.get(shard) or self._map(number)
        row = number - self._starts[shard]
        # Bound methods of the arrays: an item as a Python int, without a numpy scalar between.
        start, length = mapped.offset(row) // mapped.itemsize, mapped.length(row)
        ids = mapped.ids[start : start + length].astype(self._numpy)
        if len(ids) != length:
            self.tokens.ids(number)  # says what is wrong with the file
        return torch.from_numpy(ids)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": {}}

    def _map(self, number: int) -> _MappedIds:
        place, _ = self.tokens.locate(number)
        shard = self.tokens.shard(place)
        found = _MappedIds(shard.data, shard.offsets.item, shard.lengths.item, shard.data.itemsize)
        self._mapped[place] = found
        return found
