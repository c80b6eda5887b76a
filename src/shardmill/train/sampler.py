"""The batch sampler of packs: gives a DataLoader the pack numbers of this rank, step by step.

It runs in the main process, ahead of the training loop by as many batches as workers prefetch.
Hence it has no state of its own to save: its iterator has, by the protocol of torchdata's
StatefulDataLoader, which keeps with each batch the state after that batch was drawn; and
`StepLoader` counts the batches that it hands out. For any other loader, `state_after` answers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch.distributed
from torch.utils.data import Sampler

from shardmill.errors import ConfigError
from shardmill.train.order import (
    EpochNumbers,
    EpochSize,
    LoaderState,
    Remainder,
    Schedule,
    Split,
    state_from_plain,
    state_to_plain,
)

log = logging.getLogger(__name__)


def split_of(rank: int | None, world: int | None, batch_size: int, remainder: Remainder) -> Split:
    """Return the split; without a rank and a world, every process of torch.distributed is one."""
    if (rank is None) != (world is None):
        raise ConfigError("give both rank and world, or neither")
    if rank is None or world is None:
        running = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if running else 0
        world = torch.distributed.get_world_size() if running else 1
    return Split(rank=rank, world=world, batch_size=batch_size, remainder=remainder)


class StepSampler(Sampler[list[int]]):  # type: ignore[misc]
    """Lists of numbers, one list a step, for the `batch_sampler` of a DataLoader.

    Iterating begins at `start` and ends with the epoch; `start` is then the next epoch's.
    """

    def __init__(
        self, size: EpochSize, numbers: EpochNumbers, split: Split, *, seed: int, digest: str
    ) -> None:
        self.schedule, self.digest, self.seed = Schedule(size, split), digest, seed
        self.start = LoaderState(seed=seed)
        self._numbers = numbers

    def __len__(self) -> int:
        """The steps of a whole epoch, the same on every rank.

        After a step that borrowed, an epoch may have one fewer; with a plan for each epoch, one
        more or fewer.
        """
        return self.schedule.steps_left(LoaderState())

    def __iter__(self) -> StepIterator:
        return StepIterator(self)

    def numbers(self, state: LoaderState) -> list[int]:
        """Return the numbers that this rank takes in the step that begins here."""
        return self._numbers.of(self.schedule.take(state))

    def state_after(self, num_batches: int) -> dict[str, Any]:
        """Return the state when so many batches since `start` have been trained on."""
        return self.to_plain(self.schedule.skip(self.start, num_batches))

    def advance(self, state: LoaderState) -> LoaderState:
        """Return the state after the step that begins here."""
        return self.schedule.advance(self.schedule.settle(state))

    def steps_left(self, state: LoaderState) -> int:
        """Return the steps until the epoch ends."""
        return self.schedule.steps_left(self.schedule.settle(state))

    def epoch_start(self, epoch: int) -> LoaderState:
        """Return the head of an epoch."""
        return LoaderState(seed=self.seed, epoch=epoch)

    def to_plain(self, state: LoaderState) -> dict[str, Any]:
        """Return a state as checkpoints keep it."""
        return state_to_plain(state, self.digest)

    def from_plain(self, plain: dict[str, Any]) -> LoaderState:
        """Return a state that belongs to this very order, or say why it does not."""
        size = self.schedule.size
        return self.schedule.settle(state_from_plain(plain, self.digest, seed=self.seed, size=size))

    def load_state_dict(self, plain: dict[str, Any]) -> None:
        """Begin where `state_after`, or a loader, was saved."""
        self.start = self.from_plain(plain)


class StepIterator(Iterator[list[int]]):
    """One run through the rest of an epoch; its state is that after the batches drawn."""

    def __init__(self, sampler: StepSampler) -> None:
        self.sampler = sampler
        self.state, self.epoch = sampler.start, 0
        self._begin()

    def __next__(self) -> list[int]:
        if self.state.epoch != self.epoch:
            self.sampler.start = self.state
            raise StopIteration
        numbers = self.sampler.numbers(self.state)
        self.state = self.sampler.schedule.advance(self.state)
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch will be drawn."""
        return self.sampler.to_plain(self.state)

    def load_state_dict(self, plain: dict[str, Any]) -> None:
        """Draw from where the state was saved, and let later epochs follow it."""
        self.sampler.load_state_dict(plain)
        self._begin()

    def _begin(self) -> None:
        schedule = self.sampler.schedule
        self.state = schedule.settle(self.sampler.start)
        self.epoch = self.state.epoch
        left_out = schedule.left(self.state) % schedule.split.per_step
        if schedule.split.remainder == "drop" and left_out:
            log.warning(
                "epoch %d will leave out its last %d of %d packs: they do not fill a step of %d",
                self.epoch,
                left_out,
                schedule.size(self.epoch),
                schedule.split.per_step,
            )
