"""SampleStream: raw or decoded samples, shuffled, without packing and without a shuffle buffer.

The order is a permutation of (seed, epoch), so any sample of the epoch can come next, and the state
is a number. With threads, each reads a whole batch of samples ahead, straight from the files into
one private buffer that is used again when the batch is gone; payload bytes never pass a pipe.
Without threads, samples are views of the mapped tars: the best for data that is in memory.

Reads the members of samples, a batch at a time, with as little Python between as can be.

What a sample needs of its shard (where keys, members and bytes lie) is kept at hand for each shard,
since looking it up costs as much as copying 20 KB. Threads may share a reader: a shard that is in
use stays mapped and open, whatever the sample set closes meanwhile.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, get_worker_info

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.codec import digest
from shardmill.model.sample import MediaSize
from shardmill.shards.samples import SampleDataset, SampleShard, max_open_shards, open_samples
from shardmill.shards.tar.index import ShardIndex
from shardmill.shards.tar.members import MemberTable
from shardmill.storage.path import UrlPath, as_path
from shardmill.storage.prefetch import announce_ahead, map_ahead
from shardmill.train.dataset import Buffers, keep_freed_memory
from shardmill.train.order import sample_numbers
from shardmill.train.sampler import StepSampler, split_of
from shardmill.train.state import NO_PACK, EqualEpochs, LoaderState, Remainder
from shardmill.train.watch import Fault, Watch


class RawSample(NamedTuple):
    """A sample as it lies in its tar: key, and members by extension."""

    key: str
    members: dict[str, Any]


class _File:
    """A descriptor of our own, closed when the last user has gone."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)


class _Shard(NamedTuple):
    """What of a shard is needed for each sample; `whole` and `file` are None if it is remote."""

    key_bytes: memoryview
    key_bounds: memoryview
    shard_index: ShardIndex
    table: MemberTable
    whole: memoryview | None
    file: _File | None
    opened: SampleShard

    def views(self, inside: int) -> dict[str, Any]:
        """Return the members of a sample as views of the tar, or of what is fetched of it."""
        if self.whole is None:
            return self.opened.raw(inside)
        return self.table.views(inside, self.whole, 0)

    def copies(self, inside: int) -> dict[str, Any]:
        """Return them as bytes."""
        if self.whole is None:
            return self.opened.copies(inside)
        return self.table.copies(inside, self.whole, 0)


class RawReader:
    """Samples of a set by number: as views, as bytes, or in a buffer of the batch's own."""

    def __init__(self, samples: SampleDataset) -> None:
        self.samples, self.buffers = samples, Buffers()
        # Our own local shards have their tars beside them.
        self.is_remote = isinstance(samples.folder, UrlPath) or any(
            "tar" not in entry.files for entry in samples.entries
        )
        self._starts = list(accumulate((e.num_samples for e in samples.entries), initial=0))
        self._shards: dict[int, _Shard] = {}
        self._max_open, self._lock = max_open_shards(), threading.Lock()
        keep_freed_memory()  # or each batch of copies goes back to the system before the next

    def __reduce__(self) -> tuple[object, ...]:
        return RawReader, (self.samples,)

    def announce(self, numbers: Sequence[int]) -> None:
        """Have samples of remote tars fetched, those of one tar together."""
        if not self.is_remote:
            return
        remote: dict[int, tuple[SampleShard, list[int]]] = {}
        for shard, inside in map(self._locate, numbers):
            if shard.whole is None:
                remote.setdefault(id(shard), (shard.opened, []))[1].append(inside)
        for opened, insides in remote.values():
            opened.prefetch(insides)

    def sizes(self, number: int) -> dict[str, MediaSize]:
        """Return what the index knows of a sample's media."""
        shard, inside = self._locate(number)
        return shard.shard_index.sizes(inside)

    def views(self, numbers: Sequence[int]) -> list[RawSample]:
        """Return samples as views of the mapped tars, or as fetched if a tar is remote."""
        return self._read(numbers, _Shard.views)

    def copies(self, numbers: Sequence[int]) -> list[RawSample]:
        """Return samples whose members are bytes."""
        return self._read(numbers, _Shard.copies)

    def private(self, numbers: Sequence[int]) -> list[RawSample]:
        """Return samples in one buffer of their own, read without holding the interpreter."""
        self._renew()
        places = [self._locate(number) for number in numbers]
        spans = [shard.shard_index.span(inside) for shard, inside in places]
        whole = self.buffers.take(sum(end - start for start, end in spans))
        batch, used = [], 0
        for (shard, inside), (start, end) in zip(places, spans):
            part = whole[used : used + end - start]
            used += end - start
            if shard.file is None or os.preadv(shard.file.fd, [part], start) != len(part):
                return self.views(numbers)
            batch.append(RawSample(_key(shard, inside), shard.table.views(inside, part, start)))
        return batch

    def _read(
        self, numbers: Sequence[int], members: Callable[[_Shard, int], dict[str, Any]]
    ) -> list[RawSample]:
        self._renew()
        self.announce(numbers)
        return [
            RawSample(_key(shard, inside), members(shard, inside))
            for shard, inside in map(self._locate, numbers)
        ]

    def _renew(self) -> None:
        if self.samples.staged_dir is None:
            return
        with self._lock:
            if self.samples.renew():
                self._shards.clear()

    def _locate(self, number: int) -> tuple[_Shard, int]:
        at = bisect_right(self._starts, number) - 1
        shard = self._shards.get(at)
        return shard or self._opened(at), number - self._starts[at]

    def _opened(self, at: int) -> _Shard:
        with self._lock:
            if len(self._shards) >= self._max_open:
                self._shards.clear()
            shard = self.samples.shard(at)
            index, whole = shard.index, shard.blob.mapped()
            file = None if whole is None else _File(shard.blob.url)
            found = _Shard(
                index.keys.data, index.keys.bounds, index, index.table, whole, file, shard
            )
            self._shards[at] = found
        return found


def _key(shard: _Shard, inside: int) -> str:
    bounds = shard.key_bounds
    return str(shard.key_bytes[bounds[inside] : bounds[inside + 1]], "utf-8", "surrogateescape")


log = logging.getLogger(__name__)


class SampleStream(IterableDataset[list[Any]]):  # type: ignore[misc]
    """Batches of samples until the epoch ends; iterating again gives the next epoch.

    `decode` makes of a `RawSample` what the loop wants, in the threads if there are any. A sample
    that cannot be read is left out of its batch, named and counted. `window` shuffles only inside
    windows of so many samples, for data that is slow to reach at random. With `copy`, members are
    bytes.
    """

    def __init__(
        self,
        samples: SampleDataset | Path | str,
        *,
        batch_size: int = 32,
        seed: int = 0,
        dp_rank: int | None = None,
        dp_world: int | None = None,
        remainder: Remainder = "borrow",
        window: int | None = None,
        decode: Callable[[RawSample], Any] | None = None,
        copy: bool = False,
        threads: int = 0,
        ahead: int = 4,
        max_faults: int = 100,
    ) -> None:
        self.samples = (
            samples if isinstance(samples, SampleDataset) else open_samples(as_path(samples))
        )
        self.decode, self.threads, self.ahead = decode, threads, ahead
        self.watch, self.reader = Watch(max_faults), RawReader(self.samples)
        reader = self.reader
        self._read = reader.copies if copy else reader.private if threads else reader.views
        files = [
            [entry.name, entry.num_samples, sorted(f.checksum for f in entry.files.values())]
            for entry in self.samples.entries
        ]
        self.steps = StepSampler(
            EqualEpochs(len(self.samples)),
            sample_numbers(len(self.samples), seed, window),
            split_of(dp_rank, dp_world, batch_size, remainder),
            seed=seed,
            digest=digest(["samples", window, files]),
        )
        self.state = self.steps.start

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[Any]]:
        if get_worker_info() is not None:
            raise ConfigError(
                "every worker would read every sample: use threads instead of num_workers"
            )
        starts = self._starts()
        if self.reader.is_remote:
            starts = announce_ahead(self._announce, starts, ahead=0 if self.threads else self.ahead)
        for state, batch in map_ahead(self._make, starts, threads=self.threads, ahead=self.ahead):
            self.state = state
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch comes from."""
        return self.steps.to_plain(self.state)

    def load_state_dict(self, plain: dict[str, Any]) -> None:
        """Go on where `state_dict` was saved, with any number of ranks, threads, samples."""
        self.state = self.steps.from_plain(plain)

    def begin_epoch(self, epoch: int) -> None:
        """Leave this epoch and begin at the head of another."""
        self.state = self.steps.epoch_start(epoch)

    def _starts(self) -> Iterator[LoaderState]:
        state = self.steps.schedule.settle(self.state)
        epoch = state.epoch
        while state.epoch == epoch:
            yield state
            state = self.steps.schedule.advance(state)

    def _announce(self, state: LoaderState) -> None:
        numbers = self.steps.numbers.of(self.steps.schedule.take(state))
        self.reader.announce([number for number in numbers if number != NO_PACK])

    def _make(self, state: LoaderState) -> tuple[LoaderState, list[Any]]:
        numbers = self.steps.numbers.of(self.steps.schedule.take(state))
        real = [number for number in numbers if number != NO_PACK]
        batch: list[Any] = self._read(real)
        if self.decode is not None:
            batch = list(self._decoded(real, batch))
        return self.steps.schedule.advance(state), batch

    def _decoded(self, numbers: Sequence[int], batch: Sequence[RawSample]) -> Iterator[Any]:
        assert self.decode is not None
        for number, sample in zip(numbers, batch):
            try:
                yield self.decode(sample)
            except (SampleError, FormatError) as error:
                shard, inside = self.samples.locate(number)
                name = f"sample {inside} of shard {self.samples.entries[shard].name}, {sample.key}"
                log.warning("cannot read %s: %s", name, error)
                self.watch.add(Fault(NO_PACK, number, name, str(error)))
