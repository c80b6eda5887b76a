"""PackedStream: the packs of a data set one batch after another, read ahead by threads.

The same packs in the same order as `StepLoader` gives. It can be iterated by itself, where threads
read ahead (data behind a network, decoding that releases the interpreter), or by a DataLoader with
`batch_size=None`: worker w of W then makes every W-th batch, and a DataLoader hands them out in
turn, so that the order is the same for any number of workers. What the next `ahead` batches need
of a store is asked for at once, before anybody works on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from shardmill.errors import ConfigError
from shardmill.storage.prefetch import announce_ahead, map_ahead
from shardmill.train.dataset import PackedDataset, TrainPack
from shardmill.train.sampler import StepSampler
from shardmill.train.state import LoaderState
from shardmill.train.watch import Watch


class PackedStream(IterableDataset[Any]):  # type: ignore[misc]
    """Batches of packs until the epoch ends; iterating again gives the next epoch.

    By itself, its state counts the batches that it handed out. With workers, `StepLoader` counts:
    each worker has a copy of the stream that knows only of its own batches.
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
        if threads < 0 or ahead < 1:
            raise ConfigError(f"threads must be >= 0 and ahead >= 1, got {threads} and {ahead}")
        self.packs, self.steps, self.collate = packs, steps, collate
        self.threads, self.ahead = threads, ahead
        self.state = steps.start

    @property
    def is_remote(self) -> bool:
        """Whether the packs are read from a store."""
        return self.packs.is_remote

    @property
    def watch(self) -> Watch:
        """The notes of the workers."""
        return self.packs.watch

    def __len__(self) -> int:
        return len(self.steps)

    def __getstate__(self) -> dict[str, Any]:
        # The order is worked out again in the worker: it hangs on the plan, which is mapped there.
        steps = {"seed": self.steps.seed, "split": self.steps.schedule.split}
        return {**self.__dict__, "steps": steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        seed, split = state["steps"]["seed"], state["steps"]["split"]
        self.steps = self.packs.sampler(seed=seed, **asdict(split))

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        starts = self._starts(first, stride)
        if self.is_remote:
            starts = announce_ahead(self._announce, starts, ahead=0 if self.threads else self.ahead)
        for state, batch in map_ahead(self._make, starts, threads=self.threads, ahead=self.ahead):
            self.state = state
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch comes from."""
        if get_worker_info() is not None:
            raise ConfigError(
                "a worker's copy of a stream has no state to save: use StepLoader for the stream, "
                "or give torchdata's StatefulDataLoader the PackedDataset and its sampler"
            )
        return self.steps.to_plain(self.state)

    def load_state_dict(self, plain: dict[str, Any]) -> None:
        """Go on where `state_dict` was saved."""
        self.state = self.steps.from_plain(plain)

    def begin_epoch(self, epoch: int) -> None:
        """Leave this epoch and begin at the head of another."""
        self.state = self.steps.epoch_start(epoch)

    def describe(self, row: int) -> str:
        """Return shard and place of a row."""
        return self.packs.describe(row)

    def _starts(self, first: int, stride: int) -> Iterator[LoaderState]:
        state, number = self.steps.schedule.settle(self.state), 0
        epoch = state.epoch
        while state.epoch == epoch:
            if number % stride == first:
                yield state
            state, number = self.steps.schedule.advance(state), number + 1

    def _announce(self, state: LoaderState) -> None:
        self.packs.announce(self.steps.numbers.of(self.steps.schedule.take(state)))

    def _make(self, state: LoaderState) -> tuple[LoaderState, Any]:
        numbers = self.steps.numbers.of(self.steps.schedule.take(state))
        batch = self.collate([self.packs[number] for number in numbers])
        return self.steps.schedule.advance(state), batch
