"""A worker's side of the talk with its driver: it asks for units, and waits for what is sent."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

from shardmill.model.stage import Unit

QUICK_S = 0.005
MAX_ASKED = 16


class Inbox:
    """Units that arrive in one thread and are worked in another; `send` reaches the driver."""

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self._send = send
        self._units: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()

    def put(self, unit: Unit | None) -> None:
        """Hand over a unit; None says that there are no more."""
        self._units.put(unit)

    def units(self) -> Iterator[Unit]:
        """Ask for a unit and yield it, until the driver has no more.

        Units that take no time are asked for by the handful, so that the way is not the work.
        """
        count = 1
        while True:
            if self._units.empty():
                self._send({"kind": "ask", "count": count})
            unit = self._units.get()
            if unit is None:
                return
            began_s = time.monotonic()
            yield unit
            quick = time.monotonic() - began_s < QUICK_S
            count = min(2 * count, MAX_ASKED) if quick else 1
