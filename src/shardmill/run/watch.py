"""Who of the others lives: by whether the counter in their lock moves while we look.

No clock is compared with another. What has not changed for a while by our own clock is dead: a
counter that stands still, or a lock that is not there. A process of this very machine that is gone
is dead at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from shardmill.run.holder import is_gone, read_holder
from shardmill.run.lock import LockTiming, task_lock_name


class LifeWatch:
    """Remembers when each counter was last seen to move."""

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
            holder = read_holder(self._locks_dir / f"{task_lock_name(token)}.json")
            beat = None if holder is None else holder.beat
            before, since_s, moved = self._seen.get(token, (beat, now_s, False))
            if beat != before:
                since_s, moved = now_s, beat is not None
            self._seen[token] = beat, since_s, moved
            still_s = now_s - since_s
            if still_s >= self._timing.stale_s or (holder is not None and is_gone(holder)):
                self._dead.add(token)

    def is_dead(self, token: str) -> bool:
        """Say whether a task is known to be dead."""
        return token in self._dead

    def is_alive(self, token: str) -> bool:
        """Say whether a task's counter was seen to move; neither means: not known yet."""
        return token not in self._dead and self._seen.get(token, (None, 0.0, False))[2]
