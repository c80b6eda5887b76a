"""Streams: batches in the order of a sampler, made ahead of time by threads.

`StepStream` is what all streams share: it runs through the steps of an epoch, asks the store for
what the next `ahead` batches need before anybody works on them, and counts the batches that it
handed out. `PackedStream` streams packs, `samples.SampleStream` raw samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from shardmill.errors import ConfigError
from shardmill.storage.prefetch import announce_ahead, map_ahead
from shardmill.train.order import LoaderState
from shardmill.train.sampler import StepSampler

if TYPE_CHECKING:
    from shardmill.train.dataset import PackedDataset, TrainPack
    from shardmill.train.health import Health


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
