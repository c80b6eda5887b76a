"""Mix: several packed data sets in one stream, by weights that may follow a schedule.

A weight is a number, or points (step, weight) with straight lines between them; two points at one
step are a jump. Weights are constant within a step of the schedule, which is `packs_per_step` packs
of all ranks together, so that the stream does not depend on how many ranks there are:

    weights={"text": [(0, 3), (1000, 1)], "images": 1}      text comes less and less often
    weights={"text": 1, "clips": [(0, 0), (500, 0), (500, 2)]}   clips begin with step 500

Which source stands at place t of the stream, and as which of its packs, follows from t by counting.
The k-th pack of a source is due when its share, summed up over the places, passes k + 1/2; packs
stand in the order in which they are due. At each corner of the schedule the counts are rounded to
whole packs, so that a source whose weight is 0 does not come, and no rounding adds up.

The n-th pack of a source is a position in one of its epochs, through which each source runs by
itself, and the stream never ends. The state is the number of packs in all, and where each source
stands. With other weights or other sources the counts stay: no pack comes twice in an epoch.

In a file, `[mix]` alone or in a recipe, places are relative to its folder (see `MixFile`):

    [mix]
    packs_per_step = 512

    [mix.sources.text]
    plan = "text.plan"
    data = "text"
    weight = [[0, 3], [1000, 1]]

    [mix.sources.images]
    plan = "images.plan"
    data = "images"
    epoch_plans = "plans"
    weight = 1
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from math import isfinite
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, StaleError
from shardmill.model.codec import PlaceName, change_places, from_plain, to_plain
from shardmill.storage.path import absolute, is_remote
from shardmill.storage.text import read_toml
from shardmill.train.order import EpochNumbers, Split, Taken, other_data, split_of
from shardmill.train.plans import Plans

if TYPE_CHECKING:
    from shardmill.storage.path import AnyPath
    from shardmill.train.dataset import PackedDataset
    from shardmill.train.documents import TrainPack

log = logging.getLogger(__name__)

VERSION = 1
MAX_SOURCES = 1024
# Places whose sources are worked out at once; the tables stay in the cache of a processor.
WINDOW = 4096
# A line over more steps than this moves every few steps.
MAX_PIECES = 1 << 16
# A number in the mix is that in its source below these bits, and above them the source.
SOURCE_BITS = 56

Points: TypeAlias = Sequence[tuple[int, float]]
Weight: TypeAlias = float | Points


class Mix:
    """Several packed data sets as one, by name.

    `weights` say how often packs of each source come: numbers, or points (step, weight) with
    straight lines between them, for which `packs_per_step` must say how many packs of all ranks a
    step of the schedule takes (ranks x packs of a batch x batches that are accumulated). Aligned
    runs of `run` packs come from one source: with the packs of a step, its ranks carry like cost.

        mix = Mix({"text": packs, "images": others}, weights={"text": 3, "images": 1})
    """

    def __init__(
        self,
        sources: Mapping[str, PackedDataset],
        weights: Mapping[str, Weight],
        *,
        run: int = 1,
        packs_per_step: int | None = None,
    ) -> None:
        if not sources:
            raise ConfigError("a mix needs at least one source")
        if not isinstance(sources, Mapping) or not isinstance(weights, Mapping):
            raise ConfigError(f"sources and weights go by name, got weights {weights!r:.60}")
        if set(weights) != set(sources):
            raise ConfigError(f"weights for {sorted(weights)}, sources {sorted(sources)}")
        for name, packs in sources.items():
            if getattr(packs, "plans", None) is None:
                raise ConfigError(f"source {name!r} must be a PackedDataset, got {packs!r:.60}")
        # By name, since a checkpoint need not keep an order, and the same weights are one stream.
        self.sources = dict(sorted(sources.items()))
        ordered = {name: weights[name] for name in self.sources}
        self.interleaving = Interleaving(ordered, run=run, packs_per_step=packs_per_step)
        # One model gets them all, so that text without images has the positions of its images, too.
        rules = [packs.build.positions for packs in self.sources.values()]
        rule = next((found for found in rules if found is not None), None)
        for packs in self.sources.values():
            if packs.build.positions is None:
                packs.build = replace(packs.build, positions=rule)

    @classmethod
    def open(cls, path: AnyPath) -> Mix:
        """Return the mix that a file describes, with its data sets opened."""
        from shardmill.train.dataset import PackedDataset

        found = read_mix(path)
        sources = {name: PackedDataset(**one.arguments()) for name, one in found.sources.items()}
        return cls(sources, found.weights(), run=found.run, packs_per_step=found.packs_per_step)

    @property
    def is_remote(self) -> bool:
        """Whether any source is read from a store."""
        return any(packs.is_remote for packs in self.sources.values())

    def __len__(self) -> int:
        """The packs of the first epochs of all sources."""
        return sum(map(len, self.sources.values()))

    def __getitem__(self, number: int) -> TrainPack:
        packs = list(self.sources.values())[number >> SOURCE_BITS]
        return replace(packs[number & ((1 << SOURCE_BITS) - 1)], number=number)

    def sampler(
        self,
        *,
        seed: int = 0,
        batch_size: int = 1,
        rank: int | None = None,
        world: int | None = None,
    ) -> MixSampler:
        """Return the batch sampler of this rank; ranks default to those of torch.distributed."""
        return MixSampler(
            {name: packs.plans for name, packs in self.sources.items()},
            self.interleaving,
            split_of(rank, world, batch_size, "borrow"),  # a mix never ends: nothing remains
            seed=seed,
            digests={name: packs.digest for name, packs in self.sources.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSource:
    """One source in a file: its weight, and what `PackedDataset` takes under the same names."""

    plan: PlaceName
    data: PlaceName
    weight: float | list[tuple[int, float]]
    processor: PlaceName | None = None
    images: PlaceName | None = None
    resolution: int = 224
    lengths: PlaceName | None = None
    pad_id: int = 0
    epoch_plans: PlaceName | None = None
    staged_dir: PlaceName | None = None
    staged_bytes: int | None = None
    max_faults: int = 100
    verify: float = 0.0

    def arguments(self) -> dict[str, Any]:
        """Return what `PackedDataset` is called with."""
        return {name: value for name, value in asdict(self).items() if name != "weight"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixFile:
    """The table `[mix]` of a file: the sources by name, and what `Mix` takes."""

    sources: Mapping[str, MixSource]
    run: int = 1
    packs_per_step: int | None = None

    def weights(self) -> dict[str, Weight]:
        """Return the weight of each source."""
        return {name: source.weight for name, source in self.sources.items()}


def read_mix(path: AnyPath) -> MixFile:
    """Return the mix in a file; its places are as seen from the working folder."""
    table = read_toml(Path(path)).get("mix")
    if table is None:
        raise ConfigError(f"{path} has no [mix]: see docs/mixtures.md for what it holds")
    return parse_mix(table, Path(path))


def parse_mix(table: Any, path: Path) -> MixFile:
    """Return the table `[mix]` of a file, whose weights can be."""
    found = from_plain(table, MixFile, where=f"{path}, mix", trusted=True)
    try:
        Interleaving(found.weights(), run=found.run, packs_per_step=found.packs_per_step)
    except ConfigError as error:
        raise ConfigError(f"{path}, mix: {error}") from error

    def seen(place: str) -> str:
        return place if is_remote(place) else absolute(str(path.parent / Path(place).expanduser()))

    moved: MixFile = from_plain(change_places(to_plain(found), seen), MixFile, trusted=True)
    return moved


class MixSampler:
    """Lists of pack numbers of the mix, without end. `digests` are the identities of the data."""

    def __init__(
        self,
        plans: Mapping[str, Plans],
        interleaving: Interleaving,
        split: Split,
        *,
        seed: int,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        self.split, self.seed, self.interleaving = split, seed, interleaving
        self.names, self.plans = interleaving.names, [plans[n] for n in interleaving.names]
        self.digests = dict(digests or {})
        self.checksums = {name: plan.first.checksum for name, plan in zip(self.names, self.plans)}
        self.numbers = [EpochNumbers(p.size, partial(p.order, seed)) for p in self.plans]
        self.start = MixState()

    def __iter__(self) -> Iterator[list[int]]:
        state = self.start
        while True:
            yield self.take(state)
            state = self.advance(state)

    def take(self, state: MixState) -> list[int]:
        """Return the packs of this rank in the step that begins here."""
        return [(one.source << SOURCE_BITS) + self.number(one) for one in self.positions(state)]

    def positions(self, state: MixState) -> list[MixedPack]:
        """Return where the packs of this rank stand in their sources."""
        split, found = self.split, []
        for place in range(split.rank, split.per_step, split.world):
            source, count = self.interleaving.at(state.mixed + place)
            found.append(MixedPack(source, *self._settled(state, source, count)))
        return found

    def number(self, pack: MixedPack) -> int:
        """Return the number of a pack in its source."""
        return self.numbers[pack.source].of(Taken([pack.epoch], [pack.position]))[0]

    def advance(self, state: MixState, num_steps: int = 1) -> MixState:
        """Return the state after so many steps."""
        return replace(state, mixed=state.mixed + num_steps * self.split.per_step)

    def __len__(self) -> int:
        raise TypeError("a mix has no length: it goes on for as many steps as are asked for")

    def steps_left(self, state: MixState) -> int:
        """Refuse: a mix has no end."""
        return len(self)

    def epoch_start(self, epoch: int) -> MixState:
        """Refuse: each source has epochs of its own."""
        raise ConfigError("a mix has no epochs: each source runs through its own")

    def taken(self, state: MixState) -> dict[str, Reached]:
        """Return how far each source is, those that are gone as they were left."""
        found = dict(state.reached)
        for source, count in enumerate(self.interleaving.taken(state.mixed)):
            name = self.names[source]
            since = found.get(name, Reached())
            epoch, position = self._settled(state, source, count)
            packs = since.packs + count - state.counts.get(name, 0)
            found[name] = Reached(packs=packs, epoch=epoch, consumed=position)
        return found

    def to_plain(self, state: MixState) -> dict[str, Any]:
        """Return the state as checkpoints keep it."""
        return {
            "version": VERSION,
            "seed": self.seed,
            "digests": self.digests,
            "plans": self.checksums,
            **self.interleaving.settings(),
            "mixed": state.mixed,
            "taken": {name: asdict(reached) for name, reached in self.taken(state).items()},
        }

    def from_plain(self, plain: Mapping[str, Any]) -> MixState:
        """Return where to go on, with the weights and sources that are given here."""
        if not isinstance(plain, Mapping) or plain.get("version") != VERSION:
            raise ConfigError(f"this is not the state of a mix of version {VERSION}: {plain!r}")
        reached = _read_state(plain)
        if plain["seed"] != self.seed:
            raise StaleError(f"this mix was saved with seed {plain['seed']}, not {self.seed}")
        for name, plan in self.checksums.items():
            saved, found = plain["plans"].get(name, plan), plain["digests"].get(name)
            here = self.digests.get(name, found)
            if found is not None and (saved, found) != (plan, here):
                raise StaleError(f"source {name!r}: {other_data(found, here, saved, plan)}")
        for name, plans in zip(self.names, self.plans):
            at = reached.get(name, Reached())
            if at.consumed and at.consumed > (size := plans.size(at.epoch)):
                raise ConfigError(
                    f"the state of the mix counts {at.consumed} packs of epoch {at.epoch} of "
                    f"{name!r}, which has {size}"
                )
        settings = self.interleaving.settings()
        changed = [name for name in settings if plain[name] != settings[name]]
        if changed:
            log.warning(
                "the mix was saved with other %s: from pack %d on it follows those given here",
                ", ".join(changed),
                plain["mixed"],
            )
        counts = self.interleaving.taken(plain["mixed"])
        return MixState(plain["mixed"], reached, dict(zip(self.names, counts)))

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Begin where a loader was saved."""
        self.start = self.from_plain(plain)

    def _settled(self, state: MixState, source: int, count: int) -> tuple[int, int]:
        name = self.names[source]
        since = state.reached.get(name, Reached())
        more = count - state.counts.get(name, 0)
        return self.plans[source].settle(since.epoch, since.consumed + more)


class MixedPack(NamedTuple):
    """A pack by its source, and the epoch and position in which it stands there."""

    source: int
    epoch: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far a source is: packs in all, its epoch, and the packs of that."""

    packs: int = 0
    epoch: int = 0
    consumed: int = 0


@dataclass(frozen=True, slots=True)
class MixState:
    """The packs mixed so far; how far each source was when the run began, by the counts then."""

    mixed: int = 0
    reached: Mapping[str, Reached] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0


def _read_state(plain: Mapping[str, Any]) -> dict[str, Reached]:
    """Return how far the sources are, or raise `ConfigError` that names what is damaged."""
    kinds: dict[str, Any] = {"seed": int, "run": int, "mixed": int}
    kinds |= dict.fromkeys(("digests", "plans", "weights", "taken"), Mapping)
    kinds["packs_per_step"] = int | None
    for name, kind in kinds.items():
        value = plain.get(name)
        if name not in plain or not isinstance(value, kind) or isinstance(value, bool):
            raise ConfigError(f"the state of the mix has no {name}, or it is damaged: {value!r}")
    reached: dict[str, Reached] = from_plain(
        dict(plain["taken"]), Mapping[str, Reached], where="the state of the mix: taken"
    )
    counted = sum(one.packs for one in reached.values())
    if any(min(asdict(one).values()) < 0 for one in reached.values()) or counted != plain["mixed"]:
        raise ConfigError(
            f"the state of the mix counts {plain['mixed']} packs in all, and {counted} of its "
            f"sources: {plain['taken']!r}"
        )
    return reached


class Interleaving:
    """Which source is at which place, and how many of its packs came before."""

    def __init__(
        self, weights: Mapping[str, Weight], *, run: int = 1, packs_per_step: int | None = None
    ) -> None:
        if run < 1:
            raise ConfigError(f"run must be at least 1 pack, got {run}")
        if len(weights) > MAX_SOURCES:
            raise ConfigError(f"{len(weights)} sources are too many to mix: at most {MAX_SOURCES}")
        self.names, self.run, self.packs_per_step = list(weights), run, packs_per_step
        self.points = {name: _points(name, weight) for name, weight in weights.items()}
        moving = [name for name, points in self.points.items() if len(points) > 1]
        if packs_per_step is None and moving:
            raise ConfigError(
                f"the weight of {moving[0]!r} follows steps: give packs_per_step, the packs that a "
                "step takes on all ranks together (ranks x packs of a batch x batches that are "
                "accumulated)"
            )
        per_step = run if packs_per_step is None else packs_per_step
        if per_step < 1 or per_step % run:
            raise ConfigError(f"packs_per_step must be a multiple of run ({run}), got {per_step}")
        corners = sorted({0, *(step for points in self.points.values() for step, _ in points)})
        self.stretches: list[Stretch] = []
        reached = np.zeros(len(self.names), np.int64), np.zeros(len(self.names))
        for start, stop in [*pairwise(corners), (corners[-1], None)]:
            steps = self._moves(start, stop)
            end = None if stop is None else stop * (per_step // run)
            stretch = Stretch(steps * (per_step // run), end, self._values(steps), *reached)
            reached = stretch.after
            self.stretches.append(stretch)
        self._starts = [stretch.start for stretch in self.stretches]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Interleaving, **self.settings()), ()

    def settings(self) -> dict[str, Any]:
        """Return what decides the stream, as checkpoints keep it."""
        weights = {
            name: points[0][1] if len(points) == 1 else [[*point] for point in points]
            for name, points in self.points.items()
        }
        return {"weights": weights, "run": self.run, "packs_per_step": self.packs_per_step}

    def weights_at(self, place: int) -> dict[str, float]:
        """Return the weights that hold at a place."""
        turn = place // self.run
        values = self._stretch(turn).weights_at(turn)
        return dict(zip(self.names, values.tolist()))

    def at(self, place: int) -> tuple[int, int]:
        """Return the source of a place, and the number of its packs before it."""
        turn, inside = divmod(place, self.run)
        source, count = self._stretch(turn).at(turn)
        # With runs of 4 packs, place 10 is pack 2 of the third run.
        return source, count * self.run + inside

    def taken(self, mixed: int) -> list[int]:
        """Return how many packs of each source the first so many places hold."""
        turn, inside = divmod(mixed, self.run)
        counts = self._stretch(turn).taken(turn) * self.run
        if inside:
            counts[self.at(mixed)[0]] += inside
        found: list[int] = counts.tolist()
        return found

    def _stretch(self, turn: int) -> Stretch:
        return self.stretches[bisect_right(self._starts, turn) - 1]

    def _moves(self, start: int, stop: int | None) -> NDArray[np.int64]:
        """Return the steps from `start` on at which weights change, of a straight line."""
        first = np.array([start], np.int64)
        if stop is None or np.array_equal(
            self._values(first), self._values(first + stop - start - 1)
        ):
            return first
        num = min(stop - start, MAX_PIECES)
        return start + np.arange(num, dtype=np.int64) * (stop - start) // num

    def _values(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights [steps, sources] at these steps."""
        values = np.stack([_line(points, steps) for points in self.points.values()], axis=1)
        nothing = np.flatnonzero(values.max(axis=1) <= 0)
        if len(nothing):
            raise ConfigError(f"at step {steps[nothing[0]]} no source has a weight above 0")
        return values


class Stretch:
    """Places between two corners of a schedule, in turns of `run` packs.

    `turns` are those at which the weights `values` [turns, sources] begin to hold, `before` counts
    those of each source until here, `owed` is what they lack of their exact shares. Without an
    `end` it goes on for ever.
    """

    def __init__(
        self,
        turns: NDArray[np.int64],
        end: int | None,
        values: NDArray[np.float64],
        before: NDArray[np.int64],
        owed: NDArray[np.float64],
    ) -> None:
        self.start, self.end, self.before, self.values = int(turns[0]), end, before, values
        self._turns = turns - self.start
        # Of the largest, so that no sum overflows; and added up in order, as on any machine.
        parts = values / values.max(axis=1, keepdims=True)
        self._shares = parts / np.cumsum(parts, axis=1)[:, -1:]
        due = np.cumsum(self._shares[:-1] * np.diff(self._turns)[:, None], axis=0)
        self._bases = np.concatenate([np.zeros((1, len(before))), due])
        self._scale, self.after = np.ones(len(before)), (before, owed)
        if end is not None:
            num_turns = end - self.start
            due = self._due(np.array([num_turns]))[0]
            counts = apportion(np.where(due > 0, np.maximum(due + owed, 0), 0), num_turns)
            # Due at the end is then a whole number, which all packs of the stretch have passed.
            self._scale = counts / np.where(due > 0, due, 1)
            self.after = before + counts, owed + due - counts
        self._window = lru_cache(maxsize=4)(self._work_out)

    def at(self, turn: int) -> tuple[int, int]:
        """Return the source of a turn, and the number of its turns before it."""
        window = self._find(turn - self.start)
        place = turn - self.start - window.first
        return window.sources[place], window.counts[place]

    def taken(self, turn: int) -> NDArray[np.int64]:
        """Return how many turns of each source come before this one."""
        window = self._find(turn - self.start)
        inside = np.array(window.sources[: turn - self.start - window.first], np.int64)
        return self.before + window.reached + np.bincount(inside, minlength=len(self.before))

    def weights_at(self, turn: int) -> NDArray[np.float64]:
        """Return the weights that hold at a turn."""
        values: NDArray[np.float64] = self.values[
            np.searchsorted(self._turns, turn - self.start, side="right") - 1
        ]
        return values

    def _due(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        piece = np.searchsorted(self._turns, places, side="right") - 1
        inside = (places - self._turns[piece])[:, None]
        due: NDArray[np.float64] = self._bases[piece] + self._shares[piece] * inside
        return due

    def _reached(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many packs of each source [places, sources] are due before each place."""
        return np.floor(self._due(places) * self._scale + 0.5).astype(np.int64)

    def _find(self, place: int) -> Window:
        # As many packs are due before place x as x, give or take those that rounding moved, fewer
        # than two for each source.
        number = (place + 2 * len(self.before)) // WINDOW
        if self.end is not None:
            number = min(number, (self.end - self.start - 1) // WINDOW)
        while (window := self._window(number)).first > place:
            number -= 1
        return window

    def _work_out(self, number: int) -> Window:
        stop = (number + 1) * WINDOW
        if self.end is not None:
            stop = min(stop, self.end - self.start)
        reached = self._reached(np.arange(number * WINDOW, stop + 1))
        # Shares 3/4 and 1/4: due before places 0 1 2 3 4 are 0 1 2 2 3 of a and 0 0 1 1 1 of b, so
        # that the stream is a, a b, nothing new, a.
        new = np.diff(reached, axis=0)
        which = np.broadcast_to(np.arange(new.shape[1]), new.shape)
        sources = np.repeat(which.ravel(), new.ravel())
        counts = np.empty(len(sources), np.int64)
        first, last = self.before + reached[0], self.before + reached[-1]
        counts[np.argsort(sources, kind="stable")] = np.concatenate(
            [np.arange(*ends) for ends in zip(first.tolist(), last.tolist())]
        )
        return Window(int(reached[0].sum()), sources.tolist(), counts.tolist(), reached[0])


class Window(NamedTuple):
    """The sources of places from `first` on, their counts, and the counts at `first`."""

    first: int
    sources: list[int]
    counts: list[int]
    reached: NDArray[np.int64]


def apportion(exact: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Return whole numbers that add up to `total`, each near the exact one; 0 stays 0."""
    counts = np.floor(exact).astype(np.int64)
    while missing := total - int(counts.sum()):
        # To those who lost most by rounding, from those who gained most.
        order = np.argsort((counts - exact) * np.sign(missing), kind="stable")
        order = order[exact[order] > 0] if missing > 0 else order[counts[order] > 0]
        counts[order[: abs(missing)]] += np.sign(missing)
    return counts


def _points(name: str, weight: Any) -> tuple[tuple[int, float], ...]:
    """Return a weight as points in the order of their steps."""
    wrong = f"the weight of {name!r} must be a number or a list of (step, weight), got {weight!r}"
    is_number = isinstance(weight, int | float | np.number)
    try:
        listed = [(0, weight)] if is_number else weight
        points = tuple((index(step), float(value)) for step, value in listed)
    except (TypeError, ValueError):
        raise ConfigError(wrong) from None
    steps = [step for step, _ in points]
    if isinstance(weight, bool) or not points:
        raise ConfigError(wrong)
    if steps != sorted(steps) or steps[0] < 0 or any(steps.count(step) > 2 for step in steps):
        raise ConfigError(f"{wrong}: steps count from 0 and grow, two points at one are a jump")
    if not all(isfinite(value) and value >= 0 for _, value in points):
        raise ConfigError(f"{wrong}: a weight is a number that is not negative")
    if not any(value for _, value in points):
        raise ConfigError(f"{wrong}: with a weight of 0 it never comes, leave it out")
    return points


def _line(points: Points, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the weight at each step: on the line between two points, flat outside of them."""
    at, values = np.array([step for step, _ in points]), np.array([value for _, value in points])
    # Of two points at one step the second holds there, and the line before ends in the first.
    right = np.searchsorted(at, steps, side="right")
    left = np.maximum(right - 1, 0)
    right = np.minimum(right, len(at) - 1)
    part = (steps - at[left]) / np.maximum(at[right] - at[left], 1)
    line: NDArray[np.float64] = values[left] + (values[right] - values[left]) * np.clip(part, 0, 1)
    return line
