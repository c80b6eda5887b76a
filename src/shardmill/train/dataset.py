"""Packs by number, built when they are asked for, in whichever worker is asked.

The documents of a pack are read, laid out by `pack.build` (the function that also writes packs to
disk) and returned with the tensors of their media. A document that cannot be read, or is not as
long as planned, is left out: its place becomes padding at the end of the pack. It is named in the
log and counted against `max_faults`; no other document ever takes its place.

Memory for batches that is used again: fresh memory costs a page fault for every 4 KB.
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.lengths import LengthTable
from shardmill.model.plan import PackPlan
from shardmill.pack.build import BuildSpec, Pack, build_pack, cut_row
from shardmill.shards.lengths import read_lengths
from shardmill.storage.path import as_path
from shardmill.train.documents import Document, Reader, ReadsAhead, TokenReader
from shardmill.train.order import Plans, pack_numbers, plans_of
from shardmill.train.sampler import StepSampler, split_of
from shardmill.train.state import NO_PACK, Remainder
from shardmill.train.watch import Fault, Watch

MAX_KEPT = 16
ROUND = 1 << 20
LARGE = 16 << 20


class Buffers:
    """Anonymous maps, handed out as views and taken back when nobody looks at them any more."""

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque(maxlen=MAX_KEPT)

    def take(self, num_bytes: int) -> memoryview:
        """Return writable memory of this size; what it held before is undefined."""
        held = self._held(num_bytes)
        # Views of the array keep the array alive; when the last one goes, the map is free again.
        array = np.frombuffer(held, np.uint8)
        weakref.finalize(array, self._free.append, held).atexit = False
        return memoryview(array.data)[:num_bytes]

    def __reduce__(self) -> tuple[object, ...]:
        return Buffers, ()

    def _held(self, num_bytes: int) -> mmap.mmap:
        try:
            held = self._free.popleft()
        except IndexError:
            return mmap.mmap(-1, _rounded(num_bytes))
        return held if len(held) >= num_bytes else mmap.mmap(-1, _rounded(num_bytes))


def keep_freed_memory() -> None:
    """Let arrays of up to 16 MB be freed into the process, not back to the system.

    glibc maps blocks above a threshold (128 KB at first) afresh each time, so that each pack would
    pay a page fault for every 4 KB of it: half the time of building one. Freeing a large block
    raises the threshold to its size; the block itself is never touched and costs nothing.
    """
    np.empty(LARGE, np.uint8)


def _rounded(num_bytes: int) -> int:
    # A quarter more than asked for, so that the next, slightly larger batch fits, too.
    return (num_bytes + num_bytes // 4) // ROUND * ROUND + ROUND


log = logging.getLogger(__name__)
UNREADABLE = (SampleError, FormatError, OSError)
SECONDS = "second_per_grid_ts"


@dataclass(frozen=True, slots=True)
class TrainPack:
    """A pack and the tensors of its media, joined over its documents; number -1 is empty."""

    number: int
    pack: Pack
    tensors: Mapping[str, Any]


class PackedDataset(Dataset[TrainPack]):  # type: ignore[misc]
    """Pack number in, pack out.

    `plan` is a file, `lengths` a file or the folder it lies in (or what they hold: but files are
    mapped again in each worker, where arrays would be copied); `FreshPlans` make a plan for each
    epoch. Without lengths, each row of the reader has its own length, as token shards do.
    `positions` and `pad_id` of `build` are used; its alignment is the plan's.
    """

    def __init__(
        self,
        plan: Plans | PackPlan | Path | str,
        reader: Reader,
        *,
        lengths: LengthTable | Path | str | None = None,
        build: BuildSpec | None = None,
        max_faults: int = 100,
    ) -> None:
        self.plans = plans_of(plan)
        self._lengths_file = as_path(lengths) if isinstance(lengths, str) else lengths
        self.reader, self.watch = reader, Watch(max_faults)
        self._open()
        first = self.plans.first
        if len(reader) != first.num_rows:
            raise ConfigError(
                f"the plan packs {first.num_rows} samples, the data has {len(reader)}: this "
                "is the plan of another data set"
            )
        if self.table is not None:
            first.check_table(self.table)
        self.build = replace(build or BuildSpec(), alignment=first.spec.alignment, size=None)
        self.digest = self.plans.digest(reader.shards)

    @classmethod
    def from_tokens(
        cls,
        plan: Plans | PackPlan | Path | str,
        folder: Path | str,
        near: Path | str | None = None,
        **options: Any,
    ) -> PackedDataset:
        """Return the packs of a folder of token shards; copies may arrive `near` by."""
        return cls(plan, TokenReader.open(folder, near), **options)

    def __len__(self) -> int:
        return self.plans.size(0)

    def __getitem__(self, number: int) -> TrainPack:
        if number == NO_PACK:
            return TrainPack(NO_PACK, build_pack([], self.build, samples=[]), {})
        plan, place = self.plans.find(number)
        rows = plan[place]
        documents = self._read_all(number, plan, rows)
        kept = np.array(sorted(documents), np.int64)
        found = [documents[place] for place in kept.tolist()]
        pack = build_pack(
            [document.row for document in found],
            self.build,
            samples=rows[kept],
            positions=self._positions(found),
        )
        return TrainPack(number, pack, join_tensors(found))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "table"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def sampler(
        self,
        *,
        seed: int = 0,
        micro_batch: int = 1,
        dp_rank: int | None = None,
        dp_world: int | None = None,
        remainder: Remainder = "borrow",
    ) -> StepSampler:
        """Return the batch sampler of this rank; ranks default to those of torch.distributed."""
        split = split_of(dp_rank, dp_world, micro_batch, remainder)
        numbers = pack_numbers(self.plans, seed)
        return StepSampler(self.plans, numbers, split, seed=seed, digest=self.digest)

    @property
    def is_remote(self) -> bool:
        """Whether the reader gains from knowing which rows come next."""
        return isinstance(self.reader, ReadsAhead) and self.reader.is_remote

    def announce(self, numbers: Sequence[int]) -> None:
        """Have the documents of these packs fetched from the store."""
        if isinstance(self.reader, ReadsAhead):
            for number in numbers:
                if number != NO_PACK:
                    plan, place = self.plans.find(number)
                    self.reader.prefetch(plan[place].tolist())

    def faults(self) -> list[Fault]:
        """Return the samples that could not be read so far, in all workers."""
        return self.watch.faults()

    def describe(self, row: int) -> str:
        """Return shard and place of a row."""
        return self.reader.describe(row)

    def _open(self) -> None:
        keep_freed_memory()
        lengths = self._lengths_file
        self.table = read_lengths(lengths) if isinstance(lengths, Path) else lengths

    def _read_all(self, number: int, plan: PackPlan, rows: Any) -> dict[int, Document]:
        info = get_worker_info()
        worker = 0 if info is None else info.id + 1
        documents, room = {}, plan.spec.capacity
        if isinstance(self.reader, ReadsAhead):
            self.reader.prefetch(rows.tolist())
        for place, row in enumerate(rows.tolist()):
            self.watch.reading(worker, number, row)
            try:
                document = self._fitted(row, room, plan)
            except UNREADABLE as error:
                self._note(Fault(number, row, self.reader.describe(row), str(error)))
                continue
            documents[place] = document
            room -= -(-len(document.row.ids) // self.build.alignment) * self.build.alignment
        self.watch.resting(worker)
        return documents

    def _fitted(self, row: int, room: int, plan: PackPlan) -> Document:
        document = self.reader.read(row)
        found = len(document.row.ids)
        planned = self._planned(row, found, plan)
        if planned is None:
            if found > room:
                raise SampleError("longer than its estimate", f"{found} tokens, {room} are free")
            return document
        return (
            document if planned == found else replace(document, row=cut_row(document.row, planned))
        )

    def _planned(self, row: int, found: int, plan: PackPlan) -> int | None:
        # None: the plan was made from estimates, so any length that fits is as good.
        if self.table is None and not len(plan.cut_rows):
            return found
        if self.table is None:
            place = int(np.searchsorted(plan.cut_rows, row))
            is_cut = place < len(plan.cut_rows) and int(plan.cut_rows[place]) == row
            return int(plan.cut_lengths[place]) if is_cut else found
        measured = int(self.table.num_tokens[row])
        if self.table.exact and found != measured:
            raise SampleError("not as long as planned", f"{found} tokens, planned {measured}")
        planned = int(plan.lengths_of(np.array([row], np.uint32), self.table)[0])
        return planned if self.table.exact or planned < measured else None

    def _positions(self, documents: list[Document]) -> list[NDArray[np.int64]] | None:
        # Only the processor knows the seconds between the patches of a video.
        rule = self.build.positions
        if rule is None:
            return None
        return [
            rule.positions(document.row, np.asarray(document.tensors.get(SECONDS, ())).tolist())
            for document in documents
        ]

    def _note(self, fault: Fault) -> None:
        log.warning("process %d cannot read %s", os.getpid(), fault)
        self.watch.add(fault)


def join_tensors(documents: list[Document]) -> dict[str, Any]:
    """Return the tensors of all documents, joined along their first axis, in order."""
    return join_each([document.tensors for document in documents])


def join_each(tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tensors of each name joined along their first axis; a single one is not copied."""
    names = dict.fromkeys(name for own in tensors for name in own)
    parts = {name: [own[name] for own in tensors if name in own] for name in names}
    return {name: torch.cat(found) if len(found) > 1 else found[0] for name, found in parts.items()}
