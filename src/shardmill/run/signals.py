"""Ctrl-C and SIGTERM: noted, so that a run stops politely; a second one does not wait."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal; what is done is done, and running again goes on."""

    def __init__(self, signal_number: int, message: str) -> None:
        self.signal_number = signal_number
        super().__init__(message)


class StopSignals:
    """While the block runs, `number` is the first stop signal that came, or 0.

    With `raising`, the signal also ends the work at hand with `KeyboardInterrupt`. Outside the
    main thread Python cannot receive signals, and this does nothing.
    """

    def __init__(self, *, raising: bool) -> None:
        self.number = 0
        self._raising = raising
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        again = self.number != 0
        self.number = number
        if again or self._raising:
            raise KeyboardInterrupt
