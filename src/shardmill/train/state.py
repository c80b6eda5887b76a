"""What a loader remembers: four integers, and the digest of what they count.

    {"version": 1, "digest": "…", "seed": 0, "epoch": 2, "consumed": 4096, "borrowed": 0}

`consumed` counts the packs that all ranks together took from the head of the epoch, `borrowed`
those that the last step of the epoch before took from its end (see `serve.schedule`). The number
of ranks, workers and packs a batch is no part of it, so that any number can go on from here.

Which rank takes which packs at which step: arithmetic on (epoch, consumed), nothing else.

A step takes the next `dp_world x micro_batch` positions of the epoch; rank r takes every
`dp_world`-th of them from the r-th on, so that packs that are trained on at the same time stand
beside each other in the order, where they cost alike. With 2 ranks and a micro-batch of 2:

    positions   0 1 2 3 | 4 5 6 7 | 8 9
    rank 0      0   2   | 4   6   | 8      then the remainder
    rank 1        1   3 |   5   7 |   9

What to do with a remainder that does not fill a step:

    borrow  fill the step with packs from the far end of the next epoch, which is then that much
            shorter; each pack still comes once an epoch, and every step is full
    pad     fill the step with empty packs (number -1); some ranks may have nothing to train on
    drop    leave these packs out, and say so in the log

`borrow` is the default. It takes from the far end and not from the head, so that steps stay
aligned with the blocks of like cost. Epochs need not be equally long: where plans are made afresh,
one may have a pack more than another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, get_args

from shardmill.errors import ConfigError, StaleError
from shardmill.model.codec import digest
from shardmill.model.manifest import ShardEntry
from shardmill.model.plan import PackPlan

VERSION = 1
COUNTS = ("seed", "epoch", "consumed", "borrowed")


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


def state_to_plain(state: LoaderState, data_digest: str) -> dict[str, Any]:
    """Return the state as a checkpoint keeps it."""
    return {"version": VERSION, "digest": data_digest, **asdict(state)}


def state_from_plain(
    plain: Mapping[str, Any], data_digest: str, *, seed: int, size: Callable[[int], int]
) -> LoaderState:
    """Return the state of a checkpoint; one of other data, another plan or seed is refused.

    `size` says how many packs an epoch has.
    """
    if not isinstance(plain, Mapping) or plain.get("version") != VERSION:
        raise ConfigError(f"this is not a loader state of version {VERSION}: {plain!r}")
    missing = [name for name in COUNTS if name not in plain]
    if missing:
        raise ConfigError(f"the loader state lacks {', '.join(missing)}: {dict(plain)!r}")
    if plain.get("digest") != data_digest:
        raise StaleError(
            f"this state belongs to another data set or plan (digest {plain.get('digest')}, here "
            f"{data_digest}): its packs are not these packs, so begin afresh or open the old plan"
        )
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


def plan_digest(plan: PackPlan, shards: tuple[ShardEntry, ...] = ()) -> str:
    """Return the identity of a plan and the files it packs.

    A plan is a pure function of the lengths and the spec, so these stand for its arrays.
    """
    files = [
        [shard.name, shard.num_samples, sorted(file.checksum for file in shard.files.values())]
        for shard in shards
    ]
    return digest([plan.lengths_digest, plan.spec, len(plan), plan.num_rows, files])


Remainder = Literal["borrow", "pad", "drop"]
NO_PACK = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a step is split: data-parallel ranks, packs a rank and step, and the remainder.

    Ranks that share their packs (tensor, pipeline, context parallel) have the same `dp_rank`.
    """

    dp_rank: int = 0
    dp_world: int = 1
    micro_batch: int = 1
    remainder: Remainder = "borrow"

    def __post_init__(self) -> None:
        if self.dp_world < 1 or not 0 <= self.dp_rank < self.dp_world:
            raise ConfigError(f"dp_rank {self.dp_rank} is not one of {self.dp_world} ranks")
        if self.micro_batch < 1:
            raise ConfigError(f"micro_batch must be at least 1, got {self.micro_batch}")
        if self.remainder not in get_args(Remainder):
            names = ", ".join(get_args(Remainder))
            raise ConfigError(f"remainder must be one of {names}, got {self.remainder!r}")

    @property
    def per_step(self) -> int:
        """The packs that all ranks together take in a step."""
        return self.dp_world * self.micro_batch


@dataclass(frozen=True, slots=True)
class Taken:
    """What one rank takes in a step: positions, and the epoch in which each is a position."""

    epochs: list[int]
    positions: list[int]


class Sizes(Protocol):
    """How many packs each epoch has."""

    def size(self, epoch: int) -> int:
        """Return the packs of an epoch."""


@dataclass(frozen=True, slots=True)
class EqualEpochs:
    """The same number of packs in every epoch."""

    num_packs: int

    def size(self, epoch: int) -> int:
        """Return the packs of an epoch."""
        return self.num_packs


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of epochs of so many packs."""

    sizes: Sizes
    split: Split

    def __post_init__(self) -> None:
        per_step, num_packs = self.split.per_step, self.sizes.size(0)
        if num_packs < 1:
            raise ConfigError("there are no packs to serve")
        if self.split.remainder != "pad" and per_step > num_packs:
            raise ConfigError(
                f"a step takes {self.split.dp_world} ranks x {self.split.micro_batch} packs = "
                f"{per_step}, but there are only {num_packs} packs: use fewer ranks, a "
                "smaller micro_batch, or remainder='pad'"
            )

    def left(self, state: LoaderState) -> int:
        """Return the packs of the epoch that nobody has taken."""
        return self.sizes.size(state.epoch) - state.borrowed - state.consumed

    def steps_left(self, state: LoaderState) -> int:
        """Return the steps until the epoch ends, the same on every rank."""
        left, per_step = self.left(state), self.split.per_step
        return left // per_step if self.split.remainder == "drop" else -(-left // per_step)

    def take(self, state: LoaderState) -> Taken:
        """Return what this rank takes in the step that begins at `state`."""
        split, left = self.split, self.left(state)
        places = range(split.dp_rank, split.per_step, split.dp_world)
        if split.per_step <= left:
            positions = [state.consumed + place for place in places]
            return Taken([state.epoch] * len(positions), positions)
        pads = split.remainder == "pad"
        # Place i of a short step borrows from the end of the next epoch: its last place gets the
        # last position.
        beyond = 0 if pads else self.sizes.size(state.epoch + 1) - split.per_step
        positions = [
            state.consumed + place if place < left else NO_PACK if pads else beyond + place
            for place in places
        ]
        return Taken([state.epoch + (place >= left) for place in places], positions)

    def advance(self, state: LoaderState) -> LoaderState:
        """Return where the step after this one begins."""
        left, per_step = self.left(state), self.split.per_step
        if left < per_step and self.split.remainder == "borrow":
            return self.next_epoch(state, borrowed=per_step - left)
        after = replace(state, consumed=min(state.consumed + per_step, state.consumed + left))
        return self.settle(after)

    def skip(self, state: LoaderState, num_steps: int) -> LoaderState:
        """Return where the step begins that comes after so many others, epoch by epoch."""
        state, per_step = self.settle(state), self.split.per_step
        while num_steps >= (left := self.steps_left(state)):
            last = replace(state, consumed=state.consumed + (left - 1) * per_step)
            state, num_steps = self.advance(last), num_steps - left
        return replace(state, consumed=state.consumed + num_steps * per_step)

    def settle(self, state: LoaderState) -> LoaderState:
        """Return the same place, or the next epoch if no step is left in this one."""
        return state if self.steps_left(state) else self.next_epoch(state)

    def next_epoch(self, state: LoaderState, borrowed: int = 0) -> LoaderState:
        """Return the begin of the next epoch, at whose end some packs may be taken already."""
        return LoaderState(seed=state.seed, epoch=state.epoch + 1, borrowed=borrowed)
