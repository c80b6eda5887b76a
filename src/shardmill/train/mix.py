"""Mix: several packed data sets in one stream, by weight, with nothing left to chance.

Weights become counts in a cycle of 4096 places, over which each source is spread evenly. Place t
of the stream belongs to the source at place `t mod 4096` of the cycle and is its n-th pack, where n
follows from t by counting; the n-th pack of a source of N packs is position `n mod N` of its epoch
`n div N`. So the stream never ends, each source runs through its own epochs, and the state is the
number of packs taken from each. New weights, more or fewer sources: the counts stay, the cycle
begins anew, and no pack comes twice in an epoch of its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from shardmill.errors import ConfigError, StaleError
from shardmill.train.documents import TrainPack
from shardmill.train.order import EpochNumbers, Split, Taken, other_data, split_of
from shardmill.train.plans import OnePlan

if TYPE_CHECKING:
    from shardmill.train.dataset import PackedDataset

# Weights are met to 1/4096, and the tables of a cycle stay in the cache of a processor.
CYCLE = 4096
VERSION = 1


class Mix(Dataset[TrainPack]):  # type: ignore[misc]
    """Several packed data sets as one: pack numbers go on from one source, by name, to the next.

    `weights` say how often packs of each source come; they may change at a checkpoint. Aligned runs
    of `run` packs come from one source: with the packs of a step, its ranks carry like cost.

        mix = Mix({"text": packs, "images": others}, weights={"text": 3, "images": 1})
    """

    def __init__(
        self,
        sources: Mapping[str, PackedDataset],
        weights: Mapping[str, float],
        *,
        run: int = 1,
    ) -> None:
        if not sources:
            raise ConfigError("a mix needs at least one source")
        if set(weights) != set(sources):
            raise ConfigError(f"weights for {sorted(weights)}, sources {sorted(sources)}")
        if run < 1:
            raise ConfigError(f"run must be at least 1 pack, got {run}")
        # By name, since a checkpoint need not keep an order, and the same weights are one stream.
        self.sources, self.run = dict(sorted(sources.items())), run
        self.weights = {name: float(weights[name]) for name in self.sources}
        for name, packs in self.sources.items():
            plans = getattr(packs, "plans", None)
            if plans is None:
                raise ConfigError(f"source {name!r} must be a PackedDataset, got {packs!r:.60}")
            # Counting through epochs of unlike sizes would need the plans of all before.
            if not isinstance(plans, OnePlan):
                raise ConfigError(f"source {name!r} has a plan for each epoch: a mix takes one")
        sizes = [len(packs) for packs in self.sources.values()]
        self.starts = np.concatenate([[0], np.cumsum(sizes)])

    @property
    def is_remote(self) -> bool:
        """Whether any source is read from a store."""
        return any(packs.is_remote for packs in self.sources.values())

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, number: int) -> TrainPack:
        source = int(np.searchsorted(self.starts, number, side="right")) - 1
        packs = list(self.sources.values())[source]
        return replace(packs[number - int(self.starts[source])], number=number)

    def sampler(
        self,
        *,
        seed: int = 0,
        batch_size: int = 1,
        rank: int | None = None,
        world: int | None = None,
    ) -> MixSampler:
        """Return the batch sampler of this rank; ranks default to those of torch.distributed."""
        # A mix never ends, so there is no remainder.
        return MixSampler(self, split_of(rank, world, batch_size, "borrow"), seed=seed)


class MixSampler:
    """Lists of pack numbers of the mix, without end."""

    def __init__(self, mix: Mix, split: Split, *, seed: int) -> None:
        self.split, self.seed = split, seed
        self.run, self.weights = mix.run, mix.weights
        self.interleaving = Interleaving(self.weights)
        self.digests = {name: packs.digest for name, packs in mix.sources.items()}
        self.plans = {name: packs.plan_checksum for name, packs in mix.sources.items()}
        self.sizes = [len(packs) for packs in mix.sources.values()]
        self.offsets = mix.starts[:-1].tolist()
        self.numbers = [
            EpochNumbers(packs.plans.size, partial(packs.plans.order, seed))
            for packs in mix.sources.values()
        ]
        self.start = MixState(dict.fromkeys(mix.sources, 0))

    def __iter__(self) -> Iterator[list[int]]:
        state = self.start
        while True:
            yield self.take(state)
            state = self.advance(state)

    def take(self, state: MixState) -> list[int]:
        """Return the packs of this rank in the step that begins here."""
        split = self.split
        places = np.arange(split.batch_size, dtype=np.int64) * split.world + split.rank
        sources, counts = self._at(state.mixed + places)
        return [
            self._pack(source, state.before.get(self.interleaving.names[source], 0) + count)
            for source, count in zip(sources.tolist(), counts.tolist())
        ]

    def advance(self, state: MixState) -> MixState:
        """Return the state after a step."""
        return replace(state, mixed=state.mixed + self.split.per_step)

    def __len__(self) -> int:
        raise TypeError("a mix has no length: it goes on for as many steps as are asked for")

    def steps_left(self, state: MixState) -> int:
        """Refuse: a mix has no end."""
        return len(self)

    def epoch_start(self, epoch: int) -> MixState:
        """Refuse: each source has epochs of its own."""
        raise ConfigError("a mix has no epochs: each source runs through its own")

    def taken(self, state: MixState) -> dict[str, int]:
        """Return the packs taken from each source since the beginning."""
        # With runs of 4 packs, 10 places are 2 whole runs and 2 packs of the third.
        whole, inside = divmod(state.mixed, self.run)
        since = {name: count * self.run for name, count in self.interleaving.taken(whole).items()}
        if inside:
            source = self.interleaving.names[int(self._at(np.array([state.mixed]))[0][0])]
            since[source] += inside
        return {**state.before, **{n: state.before.get(n, 0) + c for n, c in since.items()}}

    def to_plain(self, state: MixState) -> dict[str, Any]:
        """Return the state as checkpoints keep it."""
        return {
            "version": VERSION,
            "seed": self.seed,
            "digests": self.digests,
            "plans": self.plans,
            "weights": self.weights,
            "run": self.run,
            "before": dict(state.before),
            "mixed": state.mixed,
            "taken": self.taken(state),
        }

    def from_plain(self, plain: dict[str, Any]) -> MixState:
        """Return where to go on; other weights or sources begin a new cycle at the same counts."""
        if not isinstance(plain, Mapping) or plain.get("version") != VERSION:
            raise ConfigError(f"this is not the state of a mix of version {VERSION}: {plain!r}")
        _check_state(plain)
        if plain["seed"] != self.seed:
            raise StaleError(f"this mix was saved with seed {plain['seed']}, not {self.seed}")
        for name, found in plain["digests"].items():
            here = self.digests.get(name, found)
            if here != found:
                plans = (plain["plans"].get(name), self.plans[name])
                raise StaleError(f"source {name!r}: {other_data(found, here, *plans)}")
        if plain["weights"] == self.weights and plain["run"] == self.run:
            return MixState(plain["before"], plain["mixed"])
        return MixState(plain["taken"])

    def load_state_dict(self, plain: dict[str, Any]) -> None:
        """Begin where a loader was saved."""
        self.start = self.from_plain(plain)

    def _at(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        turns, inside = np.divmod(places, self.run)
        sources, counts = self.interleaving.at(turns)
        return sources, counts * self.run + inside

    def _pack(self, source: int, count: int) -> int:
        epoch, position = divmod(count, self.sizes[source])
        number = self.numbers[source].of(Taken([epoch], [position]))[0]
        return int(self.offsets[source]) + number


def _check_state(plain: Mapping[str, Any]) -> None:
    """Raise `ConfigError` that names what a state lacks, or what is no count in it."""
    kinds: dict[str, Any] = {"seed": int, "run": int, "mixed": int}
    kinds |= dict.fromkeys(("digests", "plans", "weights", "before", "taken"), Mapping)
    for name, kind in kinds.items():
        value = plain.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ConfigError(f"the state of the mix has no {name}, or it is damaged: {value!r}")
    for name in ("before", "taken"):
        bad = [n for n, v in plain[name].items() if type(v) is not int or v < 0]
        if bad:
            raise ConfigError(f"the state of the mix has no count of packs of {bad[0]!r} in {name}")
    if plain["mixed"] < 0 or plain["run"] < 1:
        raise ConfigError("the state of the mix counts fewer than no packs")


@dataclass(frozen=True, slots=True)
class MixState:
    """The packs taken from each source before the present weights, and places mixed since."""

    before: Mapping[str, int]
    mixed: int = 0
    epoch: int = 0


class Interleaving:
    """Which source is at which place, and how many of its packs came before."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.names = list(weights)
        self.counts = cycle_counts(np.array([weights[name] for name in self.names]))
        # Pack k of c in a cycle stands at (k + 1/2) / c of its length. Counts of 3 and 1: places
        # 1/6, 3/6, 5/6 and 1/2, so the cycle is a a b a, and `nth` is 0 1 0 2.
        places = np.concatenate([(np.arange(c) + 0.5) / c for c in self.counts])
        sources = np.repeat(np.arange(len(self.names)), self.counts)
        self.cycle = sources[np.argsort(places, kind="stable")]
        self.nth = np.empty(CYCLE, np.int64)
        for source, count in enumerate(self.counts.tolist()):
            self.nth[self.cycle == source] = np.arange(count)

    def at(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each place, and the number of its packs before it."""
        turn, inside = np.divmod(places, CYCLE)
        sources = self.cycle[inside]
        return sources, turn * self.counts[sources] + self.nth[inside]

    def taken(self, mixed: int) -> dict[str, int]:
        """Return how many packs of each source the first so many places hold."""
        turn, inside = divmod(mixed, CYCLE)
        part = np.bincount(self.cycle[:inside], minlength=len(self.names))
        return dict(zip(self.names, (turn * self.counts + part).tolist()))


def cycle_counts(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many of the 4096 places each weight gets: at least one, the nearest otherwise."""
    if not len(weights) or not all(isfinite(w) and w > 0 for w in weights.tolist()):
        raise ConfigError(f"weights must be positive numbers, got {weights.tolist()}")
    if len(weights) > CYCLE // 4:
        raise ConfigError(f"{len(weights)} sources are too many to mix: at most {CYCLE // 4}")
    exact = weights / weights.sum() * CYCLE
    counts = np.maximum(1, np.floor(exact)).astype(np.int64)
    # What is missing goes to those who lost most by rounding, a surplus comes from the largest.
    order = np.argsort(counts - exact, kind="stable")
    while (missing := CYCLE - int(counts.sum())) > 0:
        counts[order[:missing]] += 1
    if missing < 0:
        counts[int(np.argmax(counts))] += missing
    return np.asarray(counts)
