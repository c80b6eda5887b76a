"""A plan made afresh for each epoch, so that documents meet other neighbours each time.

The plan of epoch e is that of epoch 0 with `epoch=e` in its spec: a pure function of (lengths,
spec, seed, epoch), so a resumed run, any other rank and any other node get the same packs. When an
epoch is first asked for, the next one is planned by a process of its own, once for all processes
that share the folder; whoever needs a plan before it is there waits for that process. Plans are
files that every worker maps:

    FOLDER/IDENTITY-3.plan         of epoch 3; those of epochs long gone are removed
    FOLDER/.IDENTITY-3.lock        held while the plan is made

A pack's number is `epoch * 2^32 + its place in the plan of that epoch`.

Makes the plan of one epoch; by itself, a process: LIKE LENGTHS EPOCH PATH.

It ends when its input does, so that it does not outlive the process that started it.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.codec import digest
from shardmill.model.manifest import ShardEntry
from shardmill.model.plan import PackPlan
from shardmill.pack.order import EpochOrder
from shardmill.pack.plan import plan_packs
from shardmill.shards.lengths import read_lengths
from shardmill.shards.plans import open_plan, write_plan
from shardmill.storage.path import as_path
from shardmill.train.state import plan_digest

NICE = 10


def make_plan(like: Path, lengths: Path, epoch: int, path: Path) -> None:
    """Put the plan of an epoch at `path`, whole or not at all."""
    first, table = open_plan(like), read_lengths(lengths)
    first.check_table(table)
    write_plan(path, plan_packs(table, replace(first.spec, epoch=epoch)))


def _end_with_parent() -> None:
    os.read(0, 1)  # not sys.stdin, whose lock would be in the way at the end
    os._exit(1)


EPOCH_BITS = 32
NUM_MAPPED = 3
KEPT_BEFORE = 1


class FreshPlans:
    """The plans of all epochs, like the plan in the file `like`, which is that of epoch 0.

    `lengths` is what that plan was made from: a length table, or a folder of token shards. `folder`
    is best on a disk that the processes of a node share.
    """

    def __init__(self, like: Path | str, lengths: Path | str, folder: Path | str) -> None:
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
        self._maker: subprocess.Popen[bytes] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return FreshPlans, (self.like, self.lengths, self.folder)

    def size(self, epoch: int) -> int:
        """Return the packs of an epoch."""
        if epoch not in self._sizes:
            self._sizes[epoch] = len(self._mapped(epoch))
        return self._sizes[epoch]

    def order(self, seed: int, epoch: int) -> FreshOrder:
        """Return the order of an epoch, while the plan of the next one is being made."""
        plan = self._mapped(epoch)
        self._remove_before(epoch - KEPT_BEFORE)
        self._begin(epoch + 1)
        return FreshOrder(plan, seed, epoch)

    def find(self, number: int) -> tuple[PackPlan, int]:
        """Return the plan of the epoch in the number, and the place in it."""
        return self._mapped(number >> EPOCH_BITS), number & ((1 << EPOCH_BITS) - 1)

    def digest(self, shards: tuple[ShardEntry, ...]) -> str:
        """Return the identity of all plans and their files."""
        return digest(["afresh", plan_digest(self.first, shards)])

    def path(self, epoch: int) -> Path:
        """Return where the plan of an epoch lies when it is made."""
        return self.like if epoch == 0 else self.folder / f"{self._name}-{epoch}.plan"

    def _open(self, epoch: int) -> PackPlan:
        if epoch == 0:
            return self.first
        path = self.path(epoch)
        if not path.exists():
            with self._making(epoch) as is_mine:
                if is_mine:
                    make_plan(self.like, self.lengths, epoch, path)
        return open_plan(path)

    def _begin(self, epoch: int) -> None:
        lock = self._locked(epoch, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is None:
            return
        try:
            if not self.path(epoch).exists():
                self._maker = self._start(epoch, lock)
        finally:
            os.close(lock)  # the maker has its own handle on the lock, and keeps it

    def _start(self, epoch: int, lock: int) -> subprocess.Popen[bytes]:
        words = [str(self.like), str(self.lengths), str(epoch), str(self.path(epoch))]
        return subprocess.Popen(
            [sys.executable, "-m", make_plan.__module__, *words],
            # It watches its input: when this process ends in any way, so does the maker.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # a plan that is not there is made again, in the open
            pass_fds=(lock,),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    @contextmanager
    def _making(self, epoch: int) -> Iterator[bool]:
        """Wait for whoever makes this plan; yield whether it is left to us."""
        lock = self._locked(epoch, fcntl.LOCK_EX)
        assert lock is not None
        try:
            yield not self.path(epoch).exists()
        finally:
            os.close(lock)

    def _locked(self, epoch: int, how: int) -> int | None:
        path = self.folder / f".{self._name}-{epoch}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, how)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def _remove_before(self, epoch: int) -> None:
        for path in self.folder.glob(f"*{self._name}-*"):
            # Also what a maker that was killed has begun to write.
            found = re.fullmatch(rf"\.?{self._name}-(\d+)\.(plan|lock)(\.\w+)?", path.name)
            if found and int(found[1]) < epoch:
                with suppress(FileNotFoundError):
                    path.unlink()


class FreshOrder:
    """The order of an epoch whose packs carry its number."""

    def __init__(self, plan: PackPlan, seed: int, epoch: int) -> None:
        self._order, self._base = EpochOrder(plan, seed=seed, epoch=epoch), epoch << EPOCH_BITS

    def packs(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number at each position."""
        return self._order.packs(positions).astype(np.int64) + self._base


if __name__ == "__main__":
    os.nice(NICE)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    make_plan(as_path(sys.argv[1]), as_path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
