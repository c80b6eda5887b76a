"""Who holds a lock, and whether that process lives, as far as it can be seen from here."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import orjson

LOCK_BYTES = 1024
PROBABLY_DEAD_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The owner of a lock, and its counter.

    `place` names the machine's boot and its process namespace: where both are ours, process ids
    mean the same. `started` tells the process from a later one with the same id.
    """

    token: str
    host: str
    pid: int
    place: str
    started: str
    beat: int = 0


@dataclass(frozen=True, slots=True)
class LockState:
    """A lock as an onlooker sees it at once: `alive` is a guess where the clocks may differ."""

    name: str
    holder: Holder
    age_s: float
    alive: bool


def read_locks(locks_dir: Path) -> list[LockState]:
    """Return the locks of a folder."""
    states = []
    for path in sorted(locks_dir.glob("*.json")):
        holder, age = read_holder(path), max(0.0, age_s(path))
        if holder is not None:
            here = holder.place == _place()
            alive = is_running(holder) if here else age < PROBABLY_DEAD_S
            states.append(LockState(path.stem, holder, age, alive))
    return states


def read_holder(path: Path) -> Holder | None:
    """Return who made a lock, or None if it is gone or cannot be read."""
    try:
        return parse_holder(path.read_bytes())
    except OSError:
        return None


def parse_holder(content: bytes) -> Holder | None:
    """Return what `holder_page` wrote, or None."""
    try:
        holder = Holder(**orjson.loads(content))
    except (orjson.JSONDecodeError, TypeError):
        return None
    return holder if isinstance(holder.pid, int) and holder.pid > 0 else None


def holder_page(holder: Holder) -> bytes:
    """Return the content of a lock, always of one length, so that one write replaces it whole."""
    return orjson.dumps(asdict(holder)).ljust(LOCK_BYTES - 1) + b"\n"


def describe_holder(path: Path, holder: Holder | None) -> str:
    """Return 'process 7 on node3 (part-1-of-1, last sign of life 2 s ago)'."""
    who = f"process {holder.pid} on {holder.host}" if holder else f"an unknown run ({path})"
    return f"{who} ({path.stem}, last sign of life {max(0.0, age_s(path)):.0f} s ago)"


def age_s(path: Path) -> float:
    """Return how long ago a lock was written by our clock, which may differ from its owner's."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def myself(token: str) -> Holder:
    """Return this process as the holder of a lock."""
    pid = os.getpid()
    _, started = _look_up(pid)
    return Holder(token=token, host=socket.gethostname(), pid=pid, place=_place(), started=started)


def is_running(holder: Holder) -> bool:
    """Say whether the very process lives; `holder.place` must be ours.

    A zombie does not: where nobody collects the dead, as in many containers, it stays for ever.
    """
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    state, started = _look_up(holder.pid)
    return started == holder.started and state not in ("Z", "X")


def is_gone(holder: Holder) -> bool:
    """Say whether the process is known to be gone: it was one of this machine."""
    return holder.place == _place() and not is_running(holder)


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
