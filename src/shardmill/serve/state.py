"""What a loader remembers: four integers, and the digest of what they count.

    {"version": 1, "digest": "…", "seed": 0, "epoch": 2, "consumed": 4096, "borrowed": 0}

`consumed` counts the packs that all ranks together took from the head of the epoch, `borrowed`
those that the last step of the epoch before took from its end (see `serve.schedule`). The number
of ranks, workers and packs a batch is no part of it, so that any number can go on from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

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
