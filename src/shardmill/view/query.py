"""What a request asks, and how long an answer may take.

Values of a query string are checked as they are taken. A request that looks through much data works
for a moment and returns a cursor; the next request continues there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from shardmill.errors import ConfigError

MAX_TEXT = 2000
MAX_NUMBER = 1 << 53  # the largest whole number that JavaScript holds exactly
SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Query:
    """The values of a query string by name."""

    values: Mapping[str, str]

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; raises `ConfigError` if it is missing and has no default."""
        value = self.values.get(name, default)
        if value is None:
            raise ConfigError(f"the request lacks {name!r}")
        if len(value) > MAX_TEXT:
            raise ConfigError(f"{name!r} is longer than {MAX_TEXT} characters")
        return value

    def number(self, name: str, default: int | None = None, *, most: int = MAX_NUMBER) -> int:
        """Return a whole number from 0 to `most`; larger ones are taken as `most`."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if value is None or not value.isascii() or not value.isdigit() or len(value) > 16:
            raise ConfigError(f"{name!r} must be a whole number, got {str(value)[:40]!r}")
        return min(int(value), most)


class Budget:
    """The time that one request may spend on a search."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._end_s = time.monotonic() + seconds

    @property
    def is_spent(self) -> bool:
        """Whether it is time to answer."""
        return time.monotonic() >= self._end_s
