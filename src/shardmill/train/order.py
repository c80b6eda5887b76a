"""What comes next: which rank takes which packs at which step.

Arithmetic, and the batch sampler that hands its results to a DataLoader.

The state of a loader is four integers, the digest of what they count (data, plan and spec), and the
checksum of the plan, by which a checkpoint says what it was trained on (none for samples):

    {"version": 1, "digest": "…", "plan": "…",
     "seed": 0, "epoch": 2, "consumed": 4096, "borrowed": 0}

`consumed` counts the packs that all ranks together took from the head of the epoch, `borrowed`
those that the last step of the epoch before took from its end. Ranks, workers and batch size are no
part of it, so any number of them can resume from it.

A step takes the next `world x batch_size` positions of the epoch; rank r takes every `world`-th of
them from the r-th on, so that packs that are trained on at the same time stand beside each other in
the order, where they cost alike. With 2 ranks and batches of 2:

    positions   0 1 2 3 | 4 5 6 7 | 8 9
    rank 0      0   2   | 4   6   | 8      then the remainder
    rank 1        1   3 |   5   7 |   9

A remainder that does not fill a step is handled in one of three ways:

    borrow  fill the step with packs from the far end of the next epoch, which is then that much
            shorter; each pack still comes once an epoch, and every step is full
    pad     fill the step with empty packs (number -1); some ranks may have nothing to train on
    drop    leave these packs out, and say so in the log

`borrow` takes from the far end and not from the head, so that steps stay aligned with the blocks of
like cost. Epochs may differ in length: with a plan for each epoch, one may have a pack more.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, StaleError
from shardmill.model.rng import mix
from shardmill.packing.order import permute

log = logging.getLogger(__name__)

VERSION = 1
COUNTS = ("seed", "epoch", "consumed", "borrowed")
NO_PACK = -1
# Positions whose order is worked out at once: large enough that numpy computes more than it is
# called, small enough that the first batch does not wait.
STRETCH = 8192

Remainder = Literal["borrow", "pad", "drop"]
# How many packs an epoch has.
EpochSize: TypeAlias = Callable[[int], int]
# One epoch: positions -> numbers of packs or samples, each number once.
Order: TypeAlias = Callable[[NDArray[np.int64]], NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """Where the next step begins."""

    seed: int = 0
    epoch: int = 0
    consumed: int = 0
    borrowed: int = 0

    def __post_init__(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            # bool is an int in Python, but no count.
            if type(value) is not int or value < 0:
                raise ConfigError(f"the state's {name} must be a count, got {value!r}")


def state_to_plain(state: LoaderState, data_digest: str, plan: str | None) -> dict[str, Any]:
    """Return the state as a checkpoint keeps it."""
    return {"version": VERSION, "digest": data_digest, "plan": plan, **asdict(state)}


def state_from_plain(
    plain: Mapping[str, Any], data_digest: str, plan: str | None, *, seed: int, size: EpochSize
) -> LoaderState:
    """Return the state of a checkpoint.

    Raises `StaleError` for a state of other data, another plan or another seed, and `ConfigError`
    for what is no state or counts more packs than an epoch has.
    """
    if not isinstance(plain, Mapping) or plain.get("version") != VERSION:
        raise ConfigError(f"this is not a loader state of version {VERSION}: {plain!r}")
    missing = [name for name in COUNTS if name not in plain]
    if missing:
        raise ConfigError(f"the loader state lacks {', '.join(missing)}: {dict(plain)!r}")
    if plain.get("digest") != data_digest:
        raise StaleError(other_data(plain.get("digest"), data_digest, plain.get("plan"), plan))
    state = LoaderState(**{name: plain[name] for name in COUNTS})
    if state.seed != seed:
        raise StaleError(
            f"this state was saved with seed {state.seed}, the loader has seed {seed}: another "
            "seed is another order, in which packs would be repeated and lost"
        )
    num_packs = size(state.epoch)
    if state.consumed + state.borrowed > num_packs:
        raise ConfigError(
            f"the state says that {state.consumed + state.borrowed} packs of the epoch are "
            f"consumed, but there are only {num_packs}"
        )
    return state


def other_data(saved: object, here: str, saved_plan: object, plan: str | None) -> str:
    """Return the message that says which of data and plan are not those of a state."""
    which = (
        f"packs by another plan (checksum {saved_plan}, here {plan})"
        if saved_plan != plan
        else f"has this plan over other data, or with epoch_plans (digest {saved}, here {here})"
    )
    return f"this state {which}: what it counts is not here; open what it was saved with, or begin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a step is split: data-parallel ranks, packs a rank and step, and the remainder.

    Ranks that share their packs (tensor, pipeline, context parallel) have the same `rank`.
    """

    rank: int = 0
    world: int = 1
    batch_size: int = 1
    remainder: Remainder = "borrow"

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ConfigError(f"rank {self.rank} is not one of {self.world} ranks")
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.remainder not in get_args(Remainder):
            names = ", ".join(get_args(Remainder))
            raise ConfigError(f"remainder must be one of {names}, got {self.remainder!r}")

    @property
    def per_step(self) -> int:
        """The packs that all ranks together take in a step."""
        return self.world * self.batch_size


def split_of(rank: int | None, world: int | None, batch_size: int, remainder: Remainder) -> Split:
    """Return the split; without a rank and a world, every process of the launcher is one."""
    if (rank is None) != (world is None):
        raise ConfigError("give both rank and world, or neither")
    if rank is None or world is None:
        import torch.distributed  # here, since the order itself can be asked for without torch

        running = torch.distributed.is_available() and torch.distributed.is_initialized()
        if running:
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            # A launcher has said it. Trainers start torch.distributed after the loader is made.
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        else:
            rank, world = 0, 1
    return Split(rank=rank, world=world, batch_size=batch_size, remainder=remainder)


class Taken(NamedTuple):
    """What one rank takes in a step: positions, and the epoch in which each is a position."""

    epochs: list[int]
    positions: list[int]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of epochs of `size(epoch)` packs."""

    size: EpochSize
    split: Split

    def __post_init__(self) -> None:
        per_step, num_packs = self.split.per_step, self.size(0)
        if num_packs < 1:
            raise ConfigError("there are no packs to train on")
        if self.split.remainder != "pad" and per_step > num_packs:
            raise ConfigError(
                f"a step takes {self.split.world} ranks x {self.split.batch_size} packs = "
                f"{per_step}, but there are only {num_packs} packs: use fewer ranks, a "
                "smaller batch_size, or remainder='pad'"
            )

    def left(self, state: LoaderState) -> int:
        """Return the packs of the epoch that nobody has taken."""
        return self.size(state.epoch) - state.borrowed - state.consumed

    def steps_left(self, state: LoaderState) -> int:
        """Return the steps until the epoch ends, the same on every rank."""
        left, per_step = self.left(state), self.split.per_step
        return left // per_step if self.split.remainder == "drop" else -(-left // per_step)

    def take(self, state: LoaderState) -> Taken:
        """Return what this rank takes in the step that begins at `state`."""
        split, left = self.split, self.left(state)
        places = range(split.rank, split.per_step, split.world)
        if split.per_step <= left:
            positions = [state.consumed + place for place in places]
            return Taken([state.epoch] * len(positions), positions)
        pads = split.remainder == "pad"
        # A short step borrows from the end of the next epoch. With steps of 4, two packs left and
        # 10 in the next epoch, places 2 and 3 become its positions 6 + 2 = 8 and 6 + 3 = 9.
        beyond = 0 if pads else self.size(state.epoch + 1) - split.per_step
        positions = [
            state.consumed + place if place < left else NO_PACK if pads else beyond + place
            for place in places
        ]
        return Taken([state.epoch + (place >= left) for place in places], positions)

    def advance(self, state: LoaderState) -> LoaderState:
        """Return where the step after this one begins."""
        left, per_step = self.left(state), self.split.per_step
        if left < per_step and self.split.remainder == "borrow":
            return self._next_epoch(state, borrowed=per_step - left)
        return self.settle(replace(state, consumed=state.consumed + min(per_step, left)))

    def skip(self, state: LoaderState, num_steps: int) -> LoaderState:
        """Return where the step begins that comes after so many others, epoch by epoch."""
        state, per_step = self.settle(state), self.split.per_step
        # Whole epochs at a time, and not by one division: their sizes may differ, and a step that
        # borrows makes the next epoch shorter.
        while num_steps >= (left := self.steps_left(state)):
            last = replace(state, consumed=state.consumed + (left - 1) * per_step)
            state, num_steps = self.advance(last), num_steps - left
        return replace(state, consumed=state.consumed + num_steps * per_step)

    def settle(self, state: LoaderState) -> LoaderState:
        """Return the same place, or the next epoch if no step is left in this one."""
        return state if self.steps_left(state) else self._next_epoch(state)

    def _next_epoch(self, state: LoaderState, borrowed: int = 0) -> LoaderState:
        return LoaderState(seed=state.seed, epoch=state.epoch + 1, borrowed=borrowed)


class EpochNumbers:
    """The numbers of packs or samples at the positions that a rank takes.

    Steps take positions one after another, and arithmetic on a few numbers at a time costs mostly
    the calls; so the order is worked out for 8192 positions at once and the last few are kept.
    """

    def __init__(self, size: EpochSize, order_of: Callable[[int], Order]) -> None:
        self._size = size
        # Two epochs, since a step that borrows takes from both.
        self._order_of = lru_cache(maxsize=2)(order_of)
        self._stretch = lru_cache(maxsize=4)(self._work_out)

    def of(self, taken: Taken) -> list[int]:
        """Return the number at each position taken, -1 where a step is padded."""
        stretch = self._stretch
        return [
            NO_PACK if at == NO_PACK else stretch(epoch, at // STRETCH)[at % STRETCH]
            for epoch, at in zip(taken.epochs, taken.positions)
        ]

    def _work_out(self, epoch: int, stretch: int) -> list[int]:
        first = stretch * STRETCH
        positions = np.arange(first, min(first + STRETCH, self._size(epoch)), dtype=np.int64)
        found: list[int] = self._order_of(epoch)(positions).tolist()
        return found


class StepSampler:
    """Lists of numbers, one list a step, for the `batch_sampler` of a DataLoader.

    Iterating begins at `start` and ends with the epoch; `start` is then the next epoch's.

    A sampler runs in the main process, ahead of the training loop by as many batches as workers
    prefetch. Hence it has no state of its own to save: its iterator has, by the protocol of
    torchdata's StatefulDataLoader, which keeps with each batch the state after that batch was
    drawn; and `StepLoader` counts the batches that it hands out. For any other loader,
    `state_after` answers.
    """

    def __init__(
        self,
        size: EpochSize,
        order_of: Callable[[int], Order],
        split: Split,
        *,
        seed: int,
        digest: str,
        plan: str | None = None,
    ) -> None:
        self.schedule, self.seed = Schedule(size, split), seed
        self.digest, self.plan = digest, plan
        self.start = LoaderState(seed=seed)
        self._numbers = EpochNumbers(size, order_of)

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
        return state_to_plain(state, self.digest, self.plan)

    def from_plain(self, plain: dict[str, Any]) -> LoaderState:
        """Return a state that belongs to this very order, or say why it does not."""
        size = self.schedule.size
        state = state_from_plain(plain, self.digest, self.plan, seed=self.seed, size=size)
        return self.schedule.settle(state)

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


def shuffled_samples(
    num_samples: int, *, seed: int, epoch: int, window: int | None = None
) -> Order:
    """Return samples in an order of (seed, epoch), never listed, so that it takes no memory.

    Samples are shuffled inside windows of so many samples, and the windows among each other: a
    window of a few shards keeps the reading of remote or cold data together. None shuffles all.
    """
    if window is not None and window < 1:
        raise ConfigError(f"window must be at least 1 sample, got {window}")
    # With 10 samples and windows of 4: windows 0 and 1 change places or not, each is shuffled
    # inside, and samples 8 and 9, shuffled, come last.
    key, width = mix(seed, epoch), min(window or num_samples, num_samples)
    num_whole = num_samples // width

    def order(positions: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers = np.empty(len(positions), np.int64)
        # The last window may be short; it keeps its place at the end.
        nth, inside = np.divmod(positions, width)
        for number in np.unique(nth).tolist():
            mine, is_last = nth == number, number == num_whole
            block = number if is_last else int(permute(np.array([number]), num_whole, key)[0])
            size = num_samples - num_whole * width if is_last else width
            numbers[mine] = block * width + permute(inside[mine], size, mix(key, block, 1))
        return numbers

    return order
