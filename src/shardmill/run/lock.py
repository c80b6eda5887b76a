"""One driver for each part of a folder, seen by its heartbeat.

A lock is the file `locks/NAME.json`, created exclusively, holding who made it and a counter that
its owner raises every few seconds. Parts 1/3 and 2/3 are different names and run together; parts
of different splits (2/3 and 1/1) overlap and refuse each other. The tasks of a cluster share the
units by claims, so they run together, each with a lock of its own; a part refuses them all.

A lock is dead when its process is gone (seen on the same machine), or when its counter stood still
while we looked. Clocks are not compared: they jump, and differ from host to host. Receipts do not
rest on the lock; it only saves double work. A driver that finds its lock taken over stops.

In an object store a lock is an object, created on the condition that there is none (`io.depot`).
There is no exclusion between looking at a dead lock and removing it; two that take over at the same
moment see it at their next beat, when one finds the other's lock in place of its own, and stops.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TypeAlias

from shardmill.errors import LockedError
from shardmill.io.depot import depot_of
from shardmill.remote.path import UrlPath
from shardmill.run.holder import (
    Holder,
    age_s,
    describe_holder,
    holder_page,
    is_gone,
    myself,
    parse_holder,
    read_holder,
)

Rival: TypeAlias = tuple[Path, Holder | None]

PART_NAME = re.compile(r"part-(\d+)-of-(\d+)\.json")
TASK_NAME = re.compile(r"task-\w+\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTiming:
    """How often a lock beats, and for how long it must stand still to count as dead."""

    beat_s: float = 3.0
    stale_s: float = 30.0


class FolderLock:
    """Holds `locks/NAME.json` while the block runs; `lost` turns true if somebody takes it over.

    With `wait`, it waits for a living holder to let go instead of raising `LockedError`.
    """

    def __init__(
        self,
        locks_dir: Path,
        name: str,
        token: str,
        *,
        wait: bool = False,
        timing: LockTiming | None = None,
        on_wait: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.path = locks_dir / f"{name}.json"
        self.lost = False
        self._depot, self._holder = depot_of(locks_dir), myself(token)
        self._wait, self._timing, self._on_wait = wait, timing or LockTiming(), on_wait
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def __enter__(self) -> FolderLock:
        while not self._try_acquire():
            self._over.wait(0.05)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if not self.lost:
            self._release()

    def _try_acquire(self) -> bool:
        # Looking may take long; what was seen is looked at again once nobody else is at it.
        dead = self._dead_rivals()
        with _guarded(self.path.parent):
            for path, holder in dead:
                if read_holder(path) == holder:
                    path.unlink(missing_ok=True)
            rivals = self._rivals()
            if not rivals and self._create():
                rivals = [rival for rival in self._rivals() if rival[0] != self.path]
                if not rivals:
                    return True
                # On another host somebody with another split looked before our file was there.
                self._release()
        if rivals and not dead and not self._wait:
            self._refuse(*rivals[0])
        return False

    def _rivals(self) -> list[Rival]:
        return [(path, read_holder(path)) for path in rival_paths(self.path)]

    def _dead_rivals(self) -> list[Rival]:
        """Return the rivals that are dead; none if one is seen to live."""
        dead, doubtful = [], []
        for path, holder in self._rivals():
            if holder is not None and is_gone(holder):
                dead.append((path, holder))
            elif not self._is_fresh(path, holder):
                doubtful.append((path, holder))
        return dead + self._standing_still(doubtful)

    def _is_fresh(self, path: Path, holder: Holder | None) -> bool:
        here = holder is not None and holder.place == self._holder.place
        return here and 0 <= age_s(path) < self._timing.stale_s

    def _standing_still(self, rivals: list[Rival]) -> list[Rival]:
        """Return the rivals if none of them moves while we look, at all of them at once."""
        if not rivals:
            return rivals
        others = f" and {len(rivals) - 1} others" if len(rivals) > 1 else ""
        self._on_wait(f"looking whether {describe_holder(*rivals[0])}{others} is alive")
        began = time.monotonic()
        while rivals and time.monotonic() - began < self._timing.stale_s:
            time.sleep(min(0.2, self._timing.beat_s / 2))
            rivals = [(path, holder) for path, holder in rivals if path.exists()]
            if any(read_holder(path) not in (holder, None) for path, holder in rivals):
                return []
        return rivals

    def _refuse(self, path: Path, holder: Holder | None) -> NoReturn:
        raise LockedError(
            f"{path.parent.parent} is being worked on by {describe_holder(path, holder)}. "
            "Wait for it, or stop it and run this command again; if that machine is gone, its lock "
            f"is taken over {self._timing.stale_s:g} s after its last sign of life"
        )

    def _create(self) -> bool:
        return self._depot.create(self.path, holder_page(self._holder))

    def _release(self) -> None:
        holder = read_holder(self.path)
        if holder is not None and holder.token == self._holder.token:
            self.path.unlink(missing_ok=True)

    def _beat_on(self) -> None:
        while not self._over.wait(self._timing.beat_s) and not self.lost:
            with suppress(OSError):
                self._beat()

    def _beat(self) -> None:
        """Raise the counter in place; the file of somebody who took over is never touched."""
        self._holder = replace(self._holder, beat=self._holder.beat + 1)
        try:
            kept = self._depot.renew(self.path, self._is_mine, holder_page(self._holder))
        except FileNotFoundError:
            kept = self._create()
        self.lost = not kept

    def _is_mine(self, content: bytes) -> bool:
        found = parse_holder(content)
        return found is not None and found.token == self._holder.token


@contextmanager
def _guarded(locks_dir: Path) -> Iterator[None]:
    """Let one process of this machine at a time change locks, where the file system can do it."""
    if isinstance(locks_dir, UrlPath):
        yield
        return
    descriptor = os.open(locks_dir, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def part_lock_name(part: tuple[int, int]) -> str:
    """Return the lock's name of part i of n."""
    return f"part-{part[0]}-of-{part[1]}"


def task_lock_name(token: str) -> str:
    """Return the lock's name of a task of a cluster, or of the driver that waits for them."""
    return f"task-{token}"


def rival_paths(path: Path) -> list[Path]:
    """Return the locks that exclude this one: the same, parts of any other split, tasks or parts.

    Tasks exclude parts and parts exclude tasks.
    """
    rivals = [path] if path.exists() else []
    others = (other for other in sorted(path.parent.iterdir()) if other != path)
    return rivals + [other for other in others if _exclude(path.name, other.name)]


def _exclude(one: str, other: str) -> bool:
    mine, theirs = PART_NAME.fullmatch(one), PART_NAME.fullmatch(other)
    if mine and theirs:
        return mine[2] != theirs[2]
    tasks = TASK_NAME.fullmatch(one), TASK_NAME.fullmatch(other)
    return bool((mine and tasks[1]) or (tasks[0] and theirs))
