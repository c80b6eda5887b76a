"""Locks of a folder, kept alive by a heartbeat: one driver for each part of it.

A lock is the file `locks/NAME.json`, created exclusively. It holds who owns it and a counter, the
heartbeat, that its owner raises every few seconds. Parts 1/3 and 2/3 are different names and run
together; parts of different splits (2/3 and 1/1) overlap and exclude each other. The tasks of a
cluster share the units by claims, so they run together, each with a lock of its own; a part
excludes them all.

A lock is dead when its process is gone (seen on the same machine), or when its counter stood still
while we looked. Clocks are never compared: they jump, and differ from host to host. Receipts do not
depend on the lock; it only saves double work. A driver that finds its lock taken over stops.

The token of a run tells the name of its lock, so that whoever asks for one run opens that file. A
listing may be old: one that does not show the lock that we just made is not believed.

In an object store a lock is an object, created on the condition that there is none. There is no
exclusion between looking at a dead lock and removing it; two that take over at the same moment see
it at their next heartbeat, when one finds the other's lock in place of its own, and stops.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TypeAlias

import orjson

from shardmill.errors import LockedError
from shardmill.storage.files import backend_of, list_names
from shardmill.storage.path import UrlPath

LOCK_BYTES = 1024
MAX_PID = 1 << 30  # no system has more, and a larger one is no number to ask it about
PROBABLY_DEAD_S = 30.0  # for who only looks; a lock is taken over by what `LockTiming` says
RELEASE_TRIES = 3
PART_NAME = re.compile(r"part-(\d+)-of-(\d+)\.json")
TASK_NAME = re.compile(r"task-\w+\.json")


def part_lock_name(part: tuple[int, int]) -> str:
    """Return the name of the lock of part i of n."""
    return f"part-{part[0]}-of-{part[1]}"


def task_lock_name(token: str) -> str:
    """Return the name of the lock of a task, or of the driver that waits for tasks."""
    return f"task-{token}"


def new_token(lock_name: str) -> str:
    """Return a token for a run that has a lock of this name."""
    return f"{secrets.token_hex(8)}-{lock_name}"


def lock_path(locks_dir: Path, token: str) -> Path:
    """Return where the lock of a run is, by its token; that of a task has no name in it."""
    name = token.partition("-")[2] or task_lock_name(token)
    return locks_dir / f"{name}.json"


def may_live(locks_dir: Path, token: str) -> bool:
    """Say whether the run has its lock; also if that cannot be read."""
    try:
        owner = parse_owner(lock_path(locks_dir, token).read_bytes())
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return owner is None or owner.token == token


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOwner:
    """Who owns a lock, and its heartbeat.

    `place` names the machine's boot and its process namespace: where both are ours, process ids
    mean the same. `started` tells the process from a later one with the same id.
    """

    token: str
    host: str
    pid: int
    place: str
    started: str
    beat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTiming:
    """How often a lock beats, and for how long it must stand still to count as dead.

    Ten beats: a machine that swaps, or a shared disk that is busy, may miss a few of them.
    """

    beat_s: float = 3.0
    stale_s: float = 30.0


Rival: TypeAlias = tuple[Path, LockOwner | None]


class FolderLock:
    """Owns `locks/NAME.json` while the block runs; `lost` turns true if somebody takes it over.

    With `wait`, it waits for a living owner to release it instead of raising `LockedError`.
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
        self._backend, self._owner = backend_of(locks_dir), this_process(token)
        self._wait, self._timing, self._on_wait = wait, timing or LockTiming(), on_wait
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)

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
        # Looking takes up to `stale_s`, too long to keep others from their locks; so what was seen
        # is read again below, where no other process of this machine can change it.
        dead = self._dead_rivals()
        with _exclusively(self.path.parent):
            for path, owner in dead:
                if read_owner(path) == owner:
                    path.unlink(missing_ok=True)
            rivals = self._rivals()
            if not rivals and self._create():
                with ExitStack() as cleanup:
                    cleanup.callback(self._release)
                    self._await_listing()
                    rivals = [rival for rival in self._rivals() if rival[0] != self.path]
                    if not rivals:
                        cleanup.pop_all()
                        return True
                    # On another host somebody with another split looked before our file was there.
        if rivals and not dead and not self._wait:
            self._refuse(*rivals[0])
        return False

    def _await_listing(self) -> None:
        """Wait until a listing shows our own lock: it then shows those that were made before."""
        began = time.monotonic()
        while self.path.name not in list_names(self.path.parent):
            if time.monotonic() - began > self._timing.stale_s:
                return
            self._over.wait(0.05)

    def _rivals(self) -> list[Rival]:
        return [(path, read_owner(path)) for path in rival_paths(self.path)]

    def _dead_rivals(self) -> list[Rival]:
        """Return the rivals that are dead; none if one is seen to live."""
        dead, doubtful = [], []
        for path, owner in self._rivals():
            if owner is not None and is_gone(owner):
                dead.append((path, owner))
            elif not self._is_fresh(path, owner):
                doubtful.append((path, owner))
        return dead + self._standing_still(doubtful)

    def _is_fresh(self, path: Path, owner: LockOwner | None) -> bool:
        here = owner is not None and owner.place == self._owner.place
        return here and 0 <= age_s(path) < self._timing.stale_s

    def _standing_still(self, rivals: list[Rival]) -> list[Rival]:
        """Return the rivals if none of them moves while we look, at all of them at once."""
        if not rivals:
            return rivals
        others = f" and {len(rivals) - 1} others" if len(rivals) > 1 else ""
        self._on_wait(f"looking whether {describe_owner(*rivals[0])}{others} is alive")
        began = time.monotonic()
        while rivals and time.monotonic() - began < self._timing.stale_s:
            time.sleep(min(0.2, self._timing.beat_s / 2))
            rivals = [(path, owner) for path, owner in rivals if path.exists()]
            if any(read_owner(path) not in (owner, None) for path, owner in rivals):
                return []
        return rivals

    def _refuse(self, path: Path, owner: LockOwner | None) -> NoReturn:
        raise LockedError(
            f"{path.parent.parent} is being worked on by {describe_owner(path, owner)}. "
            "Wait for it, or stop it and run this command again; if that machine is gone, its lock "
            f"is taken over {self._timing.stale_s:g} s after its last sign of life"
        )

    def _create(self) -> bool:
        return self._backend.create(self.path, owner_page(self._owner))

    def _release(self) -> None:
        for _ in range(RELEASE_TRIES):
            with suppress(OSError):
                if self._is_mine(self.path.read_bytes()):
                    self.path.unlink(missing_ok=True)
                return
        # One that cannot be removed stands still from now on: the next run takes it over.

    def _keep_beating(self) -> None:
        while not self._over.wait(self._timing.beat_s) and not self.lost:
            with suppress(OSError):
                self._beat()

    def _beat(self) -> None:
        """Raise the counter in place; the file of somebody who took over is never touched."""
        self._owner = replace(self._owner, beat=self._owner.beat + 1)
        try:
            kept = self._backend.renew(self.path, self._is_mine, owner_page(self._owner))
        except FileNotFoundError:
            # Somebody took us for dead and is over already, or a user removed the lock by hand.
            kept = self._create()
        self.lost = not kept

    def _is_mine(self, content: bytes) -> bool:
        found = parse_owner(content)
        return found is not None and found.token == self._owner.token


def rival_paths(path: Path) -> list[Path]:
    """Return the locks that exclude this one: the same, parts of other splits, tasks or parts."""
    rivals = [path] if path.exists() else []
    others = (other for other in sorted(path.parent.iterdir()) if other != path)
    return rivals + [other for other in others if _exclude(path.name, other.name)]


def _exclude(one: str, other: str) -> bool:
    mine, theirs = PART_NAME.fullmatch(one), PART_NAME.fullmatch(other)
    if mine and theirs:
        return mine[2] != theirs[2]
    tasks = TASK_NAME.fullmatch(one), TASK_NAME.fullmatch(other)
    return bool((mine and tasks[1]) or (tasks[0] and theirs))


@contextmanager
def _exclusively(locks_dir: Path) -> Iterator[None]:
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


@dataclass(frozen=True, slots=True)
class LockState:
    """A lock as an onlooker sees it at once: `alive` is a guess where the clocks may differ."""

    name: str
    owner: LockOwner
    age_s: float
    alive: bool


def read_locks(locks_dir: Path) -> list[LockState]:
    """Return the locks of a folder."""
    states = []
    for path in sorted(locks_dir.glob("*.json")):
        owner, age = read_owner(path), max(0.0, age_s(path))
        if owner is not None:
            here = owner.place == _place()
            alive = is_running(owner) if here else age < PROBABLY_DEAD_S
            states.append(LockState(path.stem, owner, age, alive))
    return states


def remove_dead_locks(locks_dir: Path) -> None:
    """Remove the locks of a complete folder whose owners seem to be dead, and drafts of locks."""
    for name in list_names(locks_dir):
        path = locks_dir / name
        owner, is_old = read_owner(path), age_s(path) > PROBABLY_DEAD_S
        if is_old if owner is None or owner.place != _place() else not is_running(owner):
            path.unlink(missing_ok=True)


class HeartbeatWatch:
    """Tells which of the other tasks live, by whether their heartbeat moves while we look.

    What has not changed for a while by our own clock is dead: a counter that stands still, or a
    lock that is not there. A process of this very machine that is gone is dead at once.
    """

    def __init__(
        self,
        locks_dir: Path,
        timing: LockTiming,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._locks_dir, self._timing, self._clock = locks_dir, timing, clock
        # token -> the counter (None without a lock), when it was first seen so, whether it moved
        self._seen: dict[str, tuple[int | None, float, bool]] = {}
        self._dead: set[str] = set()

    def look(self, tokens: Iterable[str]) -> None:
        """Look at the locks of these tasks."""
        now_s = self._clock()
        for token in set(tokens) - self._dead:
            owner = read_owner(self._locks_dir / f"{task_lock_name(token)}.json")
            beat = None if owner is None else owner.beat
            before, since_s, moved = self._seen.get(token, (beat, now_s, False))
            if beat != before:
                since_s, moved = now_s, beat is not None
            self._seen[token] = beat, since_s, moved
            still_s = now_s - since_s
            if still_s >= self._timing.stale_s or (owner is not None and is_gone(owner)):
                self._dead.add(token)

    def is_dead(self, token: str) -> bool:
        """Say whether a task is known to be dead."""
        return token in self._dead

    def is_alive(self, token: str) -> bool:
        """Say whether a task's counter was seen to move; neither means: not known yet."""
        return token not in self._dead and self._seen.get(token, (None, 0.0, False))[2]


def this_process(token: str) -> LockOwner:
    """Return this process as the owner of a lock."""
    pid, host = os.getpid(), socket.gethostname()
    _, started = _look_up(pid)
    return LockOwner(token=token, host=host, pid=pid, place=_place(), started=started)


def read_owner(path: Path) -> LockOwner | None:
    """Return who owns a lock, or None if it is gone or cannot be read."""
    try:
        return parse_owner(path.read_bytes())
    except OSError:
        return None


def parse_owner(content: bytes) -> LockOwner | None:
    """Return what `owner_page` wrote, or None."""
    try:
        owner = LockOwner(**orjson.loads(content))
    except (orjson.JSONDecodeError, TypeError):
        return None
    texts = (owner.token, owner.host, owner.place, owner.started)
    is_owner = all(isinstance(text, str) for text in texts) and type(owner.beat) is int
    return owner if is_owner and type(owner.pid) is int and 0 < owner.pid <= MAX_PID else None


def owner_page(owner: LockOwner) -> bytes:
    """Return the content of a lock, always of one length, so that one write replaces it whole."""
    return orjson.dumps(asdict(owner)).ljust(LOCK_BYTES - 1) + b"\n"


def describe_owner(path: Path, owner: LockOwner | None) -> str:
    """Return 'process 7 on node3 (part-1-of-1, last sign of life 2 s ago)'."""
    who = f"process {owner.pid} on {owner.host}" if owner else f"an unknown run ({path})"
    return f"{who} ({path.stem}, last sign of life {max(0.0, age_s(path)):.0f} s ago)"


def age_s(path: Path) -> float:
    """Return how long ago a lock was written by our clock, which may differ from its owner's."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def is_running(owner: LockOwner) -> bool:
    """Say whether the very process lives; `owner.place` must be ours.

    A zombie does not: where nothing reaps the dead, as in many containers, it stays for ever.
    """
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    state, started = _look_up(owner.pid)
    return started == owner.started and state not in ("Z", "X")


def is_gone(owner: LockOwner) -> bool:
    """Say whether the process is known to be gone: it was one of this machine."""
    return owner.place == _place() and not is_running(owner)


@cache
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _look_up(pid: int) -> tuple[str, str]:
    """Return a process's state and when it started, in ticks since boot; '' if unknown."""
    try:
        # '7 (a name) S 1 ...': the name may hold anything; the start is the 20th field after it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
