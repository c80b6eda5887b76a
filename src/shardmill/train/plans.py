"""The plans behind the epochs of a loader: one for all epochs, or another one for each.

With one plan the packs change places from epoch to epoch, but a document keeps its neighbours.
`EpochPlans` makes a plan for each epoch: that of epoch e is the plan of epoch 0 with `epoch=e` in
its spec, a pure function of (lengths, spec, seed, epoch), so a resumed run, any other rank and any
other node get the same packs. When an epoch is first asked for, a process of its own plans the next
one, once for all processes that share the folder; whoever needs a plan before it is there waits for
that process. Plans are files that every worker maps:

    FOLDER/IDENTITY-3.plan         of epoch 3; those of epochs long gone are removed
    FOLDER/.IDENTITY-3.lock        held while the plan is made

A pack has a number that travels to workers and says where it is found: with one plan its place
there, with a plan for each epoch `epoch * 2^32 + place`.

Run as a module, this makes the plan of one epoch: LIKE LENGTHS EPOCH PATH CODE, where CODE is
[[NAME, ...], [FOLDER, ...]]: the packer and balancer of the user's own, and where they lie.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from shardmill.errors import ConfigError, StaleError
from shardmill.machine import python_environ, python_module
from shardmill.model.codec import code_path, digest, named_in, to_plain, trust
from shardmill.model.manifest import ShardEntry, shards_digest
from shardmill.model.plan import PackPlan
from shardmill.packing.order import EpochOrder
from shardmill.packing.plan import plan_packs
from shardmill.shards.plans import open_plan, write_plan
from shardmill.shards.tokens.shard import read_lengths
from shardmill.storage.path import AnyPath, as_path

if TYPE_CHECKING:
    from shardmill.train.order import Order

EPOCH_BITS = 32
# The epoch that is trained on, the next one, from which a step may borrow, and the one before,
# whose packs workers may still be building.
NUM_MAPPED = 3
KEPT_BEFORE = 1
# Planning has a whole epoch of time, and loader workers need the processors now.
NICE = 10


def plan_digest(plan: PackPlan, shards: tuple[ShardEntry, ...] = ()) -> str:
    """Return the identity of a plan and the files it packs.

    Its packs count, and not only the lengths and the spec that they follow from: a packer of the
    user's own may have changed, or a version of ours.
    """
    return digest([plan.lengths_digest, plan.spec, plan.checksum, shards_digest(shards)])


class OnePlan:
    """The same packs in every epoch, in another order."""

    def __init__(self, source: PackPlan | AnyPath) -> None:
        self._source = source if isinstance(source, PackPlan) else as_path(source)
        self.first = open_plan(self._source) if isinstance(self._source, Path) else self._source

    def __reduce__(self) -> tuple[Any, ...]:
        return OnePlan, (self._source,)

    def size(self, epoch: int) -> int:
        """Return the packs of the plan."""
        return len(self.first)

    def order(self, seed: int, epoch: int) -> Order:
        """Return the order of an epoch."""
        return EpochOrder(self.first, seed=seed, epoch=epoch).packs

    def settle(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the epoch and position that lie so many packs behind the head of an epoch."""
        more, position = divmod(position, len(self.first))
        return epoch + more, position

    def find(self, number: int) -> tuple[PackPlan, int]:
        """Return the plan and the number itself."""
        return self.first, number

    def digest(self, shards: tuple[ShardEntry, ...]) -> str:
        """Return the identity of the plan and its files."""
        return plan_digest(self.first, shards)


class EpochPlans:
    """A plan for each epoch, like the plan in the file `like`, which is that of epoch 0.

    `lengths` is what that plan was made from: a length table, or a folder of token shards. `folder`
    takes the plans of the other epochs; best on a disk that the processes of a node share.
    `trusted` are the packer and balancer of the user's own, for processes that do not know them.
    """

    def __init__(
        self, like: AnyPath, lengths: AnyPath, folder: AnyPath, trusted: Sequence[str] = ()
    ) -> None:
        trust(*trusted)
        self.like, self.lengths, self.folder = as_path(like), as_path(lengths), Path(folder)
        self.first = open_plan(self.like)
        if self.first.spec.epoch:
            raise ConfigError(
                f"{self.like} is a plan of epoch {self.first.spec.epoch}: the plans of all epochs "
                "begin with that of epoch 0"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        identity = digest([self.first.lengths_digest, self.first.spec, len(self.first)])
        self._name = identity[:16]
        self._sizes = {0: len(self.first)}
        self._mapped = lru_cache(maxsize=NUM_MAPPED)(self._open)
        # Kept, because its input closes when it is collected, at which the planner ends.
        self._planner: subprocess.Popen[bytes] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        names = named_in(to_plain(self.first.spec))
        return EpochPlans, (self.like, self.lengths, self.folder, names)

    def size(self, epoch: int) -> int:
        """Return the packs of an epoch."""
        if epoch not in self._sizes:
            self._sizes[epoch] = len(self._mapped(epoch))
        return self._sizes[epoch]

    def order(self, seed: int, epoch: int) -> Order:
        """Return the order of an epoch, while the plan of the next one is being made."""
        order = EpochOrder(self._mapped(epoch), seed=seed, epoch=epoch)
        self._remove_before(epoch - KEPT_BEFORE)
        self._plan_in_background(epoch + 1)
        return lambda positions: order.packs(positions).astype("int64") + (epoch << EPOCH_BITS)

    def settle(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the epoch and position that lie so many packs behind the head of an epoch."""
        # At the head of an epoch its size is not asked for: its plan need not be there yet.
        while position and position >= (size := self.size(epoch)):
            epoch, position = epoch + 1, position - size
        return epoch, position

    def find(self, number: int) -> tuple[PackPlan, int]:
        """Return the plan of the epoch in the number, and the place in it."""
        return self._mapped(number >> EPOCH_BITS), number & ((1 << EPOCH_BITS) - 1)

    def digest(self, shards: tuple[ShardEntry, ...]) -> str:
        """Return the identity of all plans and their files."""
        return digest(["epoch plans", plan_digest(self.first, shards)])

    def path(self, epoch: int) -> Path:
        """Return where the plan of an epoch lies when it is made."""
        return self.like if epoch == 0 else self.folder / f"{self._name}-{epoch}.plan"

    def _open(self, epoch: int) -> PackPlan:
        if epoch == 0:
            return self.first
        path = self.path(epoch)
        if not path.exists():
            # Waits for whoever makes this plan, and makes it if they have failed.
            with self._locked(epoch, fcntl.LOCK_EX):
                if not path.exists():
                    make_plan(self.like, self.lengths, epoch, path)
        plan, first = open_plan(path), self.first
        # The folder may be shared, and a name is no proof.
        if (plan.spec, plan.lengths_digest) != (
            replace(first.spec, epoch=epoch),
            first.lengths_digest,
        ):
            raise StaleError(f"{path} is not the plan of epoch {epoch} of {self.like}: remove it")
        return plan

    def _plan_in_background(self, epoch: int) -> None:
        with suppress(BlockingIOError), self._locked(epoch, fcntl.LOCK_EX | fcntl.LOCK_NB) as lock:
            if self.path(epoch).exists():
                return
            # A process and not a thread, which would take the interpreter from the training loop.
            spec = to_plain(self.first.spec)
            code = json.dumps([named_in(spec), code_path(spec)])
            words = [str(self.like), str(self.lengths), str(epoch), str(self.path(epoch)), code]
            self._planner = subprocess.Popen(
                [*python_module(make_plan.__module__), *words],
                # It watches its input: when this process ends in any way, so does the planner.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a plan that fails here is made again, in the open
                pass_fds=(lock,),  # its own handle on the lock, which it keeps when ours is closed
                env=python_environ(),
            )

    @contextmanager
    def _locked(self, epoch: int, how: int) -> Iterator[int]:
        path = self.folder / f".{self._name}-{epoch}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, how)
            yield lock
        finally:
            os.close(lock)

    def _remove_before(self, epoch: int) -> None:
        for path in self.folder.glob(f"*{self._name}-*"):
            # Also what a planner that was killed has begun to write.
            found = re.fullmatch(rf"\.?{self._name}-(\d+)\.(plan|lock)(\.\w+)?", path.name)
            if found and int(found[1]) < epoch:
                with suppress(FileNotFoundError):
                    path.unlink()


# What a loader asks of its plans: the first one, the size and order of an epoch, where a pack is.
# Both pickle, and are mapped again by the process that gets them.
Plans: TypeAlias = OnePlan | EpochPlans


def make_plan(like: Path, lengths: Path, epoch: int, path: Path) -> None:
    """Put the plan of an epoch at `path`, whole or not at all."""
    first, table = open_plan(like), read_lengths(lengths)
    first.check_table(table, lengths)
    write_plan(path, plan_packs(table, replace(first.spec, epoch=epoch)))


def _end_with_parent() -> None:
    os.read(0, 1)  # not sys.stdin, whose lock would be in the way at the end
    os._exit(1)


if __name__ == "__main__":
    os.nice(NICE)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    names, folders = json.loads(sys.argv[5])
    trust(*names)
    sys.path += folders
    make_plan(as_path(sys.argv[1]), as_path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
