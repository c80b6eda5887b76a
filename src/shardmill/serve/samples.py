"""SampleStream: raw or decoded samples, shuffled, without packing and without a shuffle buffer.

The order is a permutation of (seed, epoch), so any sample of the epoch can come next, and the state
is a number. With threads, each reads a whole batch of samples ahead, straight from the files into
one private buffer that is used again when the batch is gone; payload bytes never pass a pipe.
Without threads, samples are views of the mapped tars: the best for data that is in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.io.sampleset import SampleSet, open_samples
from shardmill.model.codec import digest
from shardmill.remote.path import as_path
from shardmill.serve.ahead import announced, in_order
from shardmill.serve.order import sample_numbers
from shardmill.serve.rawread import RawReader, RawSample
from shardmill.serve.sampler import StepSampler, split_of
from shardmill.serve.schedule import NO_PACK, EqualEpochs, Remainder
from shardmill.serve.state import LoaderState
from shardmill.serve.watch import Fault, Watch

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
        samples: SampleSet | Path | str,
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
        self.samples = samples if isinstance(samples, SampleSet) else open_samples(as_path(samples))
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
            starts = announced(starts, self._announce, ahead=0 if self.threads else self.ahead)
        for state, batch in in_order(starts, self._make, threads=self.threads, ahead=self.ahead):
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
