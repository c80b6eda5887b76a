"""Streams: batches in the order of a sampler, made ahead of time by threads.

`StepStream` is what all streams share: it runs through the steps of an epoch, asks the store for
what the next `ahead` batches need before anybody works on them, and counts the batches that it
handed out. `PackedStream` streams packs. `SampleStream` streams raw samples, shuffled without a
shuffle buffer: their order is a permutation of (seed, epoch), so any sample of the epoch can come
next, and the state is a number. Payload bytes never pass a pipe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.codec import digest
from shardmill.model.manifest import shards_digest
from shardmill.shards.samples import SampleDataset, open_samples
from shardmill.storage.path import AnyPath, as_path
from shardmill.storage.prefetch import announce_ahead, map_ahead
from shardmill.train.health import Health, SampleFault
from shardmill.train.order import (
    NO_PACK,
    LoaderState,
    Remainder,
    StepSampler,
    shuffled_samples,
    split_of,
)
from shardmill.train.samples import RawReader, RawSample

if TYPE_CHECKING:
    from shardmill.train.dataset import PackedDataset
    from shardmill.train.documents import TrainPack

log = logging.getLogger(__name__)


class StepStream(IterableDataset[Any]):  # type: ignore[misc]
    """Batches until the epoch ends; iterating again gives the next epoch.

    A subclass says what is remote, how to announce numbers to the store and how to make a batch of
    them. `threads` make batches, at most `ahead` of which wait; without threads a batch is made
    when it is asked for.
    """

    def __init__(self, steps: StepSampler, *, threads: int, ahead: int) -> None:
        if threads < 0 or ahead < 1:
            raise ConfigError(f"threads must be >= 0 and ahead >= 1, got {threads} and {ahead}")
        self.steps, self.threads, self.ahead = steps, threads, ahead
        self.state = steps.start

    @property
    def is_remote(self) -> bool:
        """Whether anything is read from a store."""
        raise NotImplementedError

    def announce(self, numbers: Sequence[int]) -> None:
        """Have the store asked for what a batch of these numbers needs."""
        raise NotImplementedError

    def make(self, numbers: Sequence[int]) -> Any:
        """Return the batch of these numbers; -1 stands for an empty place."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Any]:
        states = self._states()
        if self.is_remote:
            # Threads take tasks as far ahead as they work, so announcing the next one is enough.
            ahead = 0 if self.threads else self.ahead
            states = announce_ahead(
                lambda at: self.announce(self.steps.numbers(at)), states, ahead=ahead
            )
        made = map_ahead(self._step, states, threads=self.threads, ahead=self.ahead)
        for self.state, batch in made:
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch comes from."""
        return self.steps.to_plain(self.state)

    def load_state_dict(self, plain: dict[str, Any]) -> None:
        """Go on where `state_dict` was saved, with any number of ranks, threads, batch size."""
        self.state = self.steps.from_plain(plain)

    def begin_epoch(self, epoch: int) -> None:
        """Leave this epoch and begin at the head of another."""
        self.state = self.steps.epoch_start(epoch)

    def _states(self) -> Iterator[LoaderState]:
        # Worker w of W makes every W-th batch; a DataLoader hands them out in turn, so that the
        # order is the same for any number of workers.
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        state, number = self.steps.schedule.settle(self.state), 0
        epoch = state.epoch
        while state.epoch == epoch:
            if number % stride == first:
                yield state
            state, number = self.steps.schedule.advance(state), number + 1

    def _step(self, state: LoaderState) -> tuple[LoaderState, Any]:
        return self.steps.schedule.advance(state), self.make(self.steps.numbers(state))


class PackedStream(StepStream):
    """Batches of packs: the same packs in the same order as `StepLoader` gives.

    It can be iterated by itself, where threads read ahead (data behind a network, decoding that
    releases the interpreter), or by a DataLoader with `batch_size=None`. With workers, `StepLoader`
    counts: each worker has a copy of the stream that knows only of its own batches.
    """

    def __init__(
        self,
        packs: PackedDataset,
        steps: StepSampler,
        collate: Callable[[Sequence[TrainPack]], Any],
        *,
        threads: int = 2,
        ahead: int = 4,
    ) -> None:
        super().__init__(steps, threads=threads, ahead=ahead)
        self.packs, self.collate = packs, collate

    @property
    def is_remote(self) -> bool:
        """Whether the packs are read from a store."""
        return self.packs.is_remote

    @property
    def health(self) -> Health:
        """What the workers read and could not read."""
        return self.packs.health

    def announce(self, numbers: Sequence[int]) -> None:
        """Have the documents of these packs fetched from the store."""
        self.packs.announce(numbers)

    def make(self, numbers: Sequence[int]) -> Any:
        """Return the batch of these packs."""
        return self.collate([self.packs[number] for number in numbers])

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch comes from."""
        if get_worker_info() is not None:
            raise ConfigError(
                "a worker's copy of a stream has no state to save: use StepLoader for the stream, "
                "or give torchdata's StatefulDataLoader the PackedDataset and its sampler"
            )
        return super().state_dict()

    def describe(self, row: int) -> str:
        """Return shard and place of a row."""
        return self.packs.describe(row)

    def __getstate__(self) -> dict[str, Any]:
        # The order is worked out again in the worker: it hangs on the plan, which is mapped there.
        steps = {"seed": self.steps.seed, **asdict(self.steps.schedule.split)}
        return {**self.__dict__, "steps": steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.steps = self.packs.sampler(**state["steps"])


class SampleStream(StepStream):
    """Batches of samples until the epoch ends; iterating again gives the next epoch.

    `samples` is a folder of sample shards. `decode` makes of a `RawSample` what the loop wants, in
    the threads if there are any. A sample that cannot be read is left out of its batch, named in
    the log and counted against `max_faults`. `window` shuffles only inside windows of so many
    samples, for data that is slow to reach at random. With `copy`, members are bytes.
    """

    def __init__(
        self,
        samples: SampleDataset | AnyPath,
        *,
        batch_size: int = 32,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
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
        self.decode, self.health = decode, Health(max_faults)
        self.reader = reader = RawReader(self.samples)
        self._read = reader.copies if copy else reader.private if threads else reader.views
        num_samples = len(self.samples)
        steps = StepSampler(
            lambda epoch: num_samples,
            lambda epoch: shuffled_samples(num_samples, seed=seed, epoch=epoch, window=window),
            split_of(rank, world, batch_size, remainder),
            seed=seed,
            digest=digest(["samples", window, shards_digest(self.samples.entries)]),
        )
        super().__init__(steps, threads=threads, ahead=ahead)

    def __iter__(self) -> Iterator[list[Any]]:
        if get_worker_info() is not None:
            raise ConfigError(
                "every worker would read every sample: use threads instead of num_workers"
            )
        return super().__iter__()

    @property
    def is_remote(self) -> bool:
        """Whether tars are read from a store."""
        return self.reader.is_remote

    def announce(self, numbers: Sequence[int]) -> None:
        """Have the members of these samples fetched from the store."""
        self.reader.announce([number for number in numbers if number != NO_PACK])

    def make(self, numbers: Sequence[int]) -> list[Any]:
        """Return the samples, decoded if that was asked for."""
        real = [number for number in numbers if number != NO_PACK]
        batch: list[Any] = self._read(real)
        return batch if self.decode is None else list(self._decoded(real, batch, self.decode))

    def _decoded(
        self,
        numbers: Sequence[int],
        batch: Sequence[RawSample],
        decode: Callable[[RawSample], Any],
    ) -> Iterator[Any]:
        for number, sample in zip(numbers, batch):
            try:
                yield decode(sample)
            except (SampleError, FormatError) as error:
                shard, inside = self.samples.locate(number)
                name = f"sample {inside} of shard {self.samples.entries[shard].name}, {sample.key}"
                log.warning("cannot read %s: %s", name, error)
                self.health.add(SampleFault(NO_PACK, number, name, str(error)))
