"""Looking through much data in small bites: a request works for a moment, the next goes on."""

from __future__ import annotations

import time

SECONDS = 0.25


class Budget:
    """The time that one request may take for looking."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._end_s = time.monotonic() + seconds

    @property
    def is_spent(self) -> bool:
        """Whether it is time to answer."""
        return time.monotonic() >= self._end_s
