"""Ctrl-C and SIGTERM: noted, so that a run stops politely; a second one does not wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn


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


class Drain:
    """While the block runs, SIGUSR1 calls `close`: the time is nearly over, begin nothing new."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._before: Any = None

    def __enter__(self) -> Drain:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGUSR1, lambda *_: self._close())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGUSR1, self._before)


def raise_interrupted(number: int, out_dir: Path) -> NoReturn:
    """Say that a signal stopped the run, and how to go on."""
    raise Interrupted(
        number,
        f"stopped by {signal.Signals(number).name}; what is done is kept in {out_dir}: run the "
        "same command again to go on",
    )
