"""Packs of data that never ends: a bounded window of waiting samples, filled exactly from it.

The oldest sample is in every pack, so none waits for long. The state is the window and two sums:
small, plain numbers that belong in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from shardmill.errors import ConfigError, SampleError
from shardmill.packing.fit import BLIND_MEANS, TOO_LONG
from shardmill.packing.loops import NO_LIMIT, choose


class StreamPlanner:
    """Takes samples one by one as (number, length) and gives packs of numbers."""

    def __init__(
        self,
        capacity: int,
        *,
        window: int = 128,
        alignment: int = 1,
        max_documents: int | None = None,
    ) -> None:
        if not 1 <= alignment <= capacity:
            raise ConfigError(f"alignment must be 1..capacity ({capacity}), got {alignment}")
        if window < 1:
            raise ConfigError(f"window must be at least 1, got {window}")
        self._capacity, self._alignment = capacity // alignment, alignment
        self._window, self._max_documents = window, max_documents or NO_LIMIT
        self._numbers: list[int] = []
        self._units: list[int] = []
        self._num_seen = self._units_seen = 0

    def add(self, number: int, num_tokens: int) -> list[int] | None:
        """Take a sample; return a pack once the window is full.

        A sample that can be in no pack raises `SampleError` and leaves the state as it was.
        """
        units = -(-num_tokens // self._alignment)
        if units < 1:
            raise SampleError("no tokens", f"sample {number} has the length {num_tokens}")
        if units > self._capacity:
            raise SampleError(TOO_LONG, f"sample {number} has {num_tokens} tokens")
        self._numbers.append(number)
        self._units.append(units)
        self._num_seen += 1
        self._units_seen += units
        if len(self._units) < self._window:
            return None
        # Checked with every pack, because only now it is known how long the samples are.
        self._check_window()
        return self._take()

    def packs(self, samples: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
        """Yield the packs of samples (number, length), the last ones partly filled."""
        for number, num_tokens in samples:
            pack = self.add(number, num_tokens)
            if pack is not None:
                yield pack
        yield from self.flush()

    def flush(self) -> Iterator[list[int]]:
        """Yield packs until no sample waits any more."""
        while self._units:
            yield self._take()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold, as plain JSON values."""
        return {
            "numbers": list(self._numbers),
            "units": list(self._units),
            "num_seen": self._num_seen,
            "units_seen": self._units_seen,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state; the settings must be those with which it was made."""
        if len(state["numbers"]) != len(state["units"]) or len(state["units"]) > self._window:
            raise ConfigError(
                f"the state holds {len(state['units'])} waiting samples, the window {self._window}"
            )
        self._numbers, self._units = list(state["numbers"]), list(state["units"])
        self._num_seen, self._units_seen = int(state["num_seen"]), int(state["units_seen"])

    def _check_window(self) -> None:
        waiting = sum(self._units)
        if waiting < self._capacity:
            raise ConfigError(
                f"a window of {self._window} samples holds {waiting * self._alignment} tokens, "
                f"less than one pack of {self._capacity * self._alignment}: widen the window"
            )

    def _take(self) -> list[int]:
        # As in `fit`, but by the mean of all samples so far: what comes is not known.
        blind = min(self._capacity, BLIND_MEANS * self._units_seen // self._num_seen)
        chosen = choose(self._units, self._capacity, blind, self._max_documents)
        pack = [self._numbers[place] for place in chosen]
        for place in reversed(chosen):
            del self._units[place], self._numbers[place]
        return pack
