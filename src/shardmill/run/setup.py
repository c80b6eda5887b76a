"""The drafts and the log of a run, made when it begins and tidied up when it ends.

The system's refusals to read or write an output folder, as errors that name it.

What runs and tasks leave behind when they are killed, and when it may be removed.

Ctrl-C and SIGTERM: noted, so that a run stops politely; a second one does not wait.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from shardmill.errors import ShardmillError, StoreError
from shardmill.run.events import Event, EventLog, OnEvent
from shardmill.run.job import is_fatal
from shardmill.run.lock import read_locks
from shardmill.shards.ledger import Ledger
from shardmill.storage.path import UrlPath


@dataclass(frozen=True, slots=True)
class Teller:
    """Tells events to all listeners, and to the log if they are our own."""

    log: EventLog
    listeners: Sequence[OnEvent]

    def __call__(self, event: Event) -> None:
        """Log an event and tell it."""
        self.log(event)
        self.relay(event)

    def relay(self, event: Event) -> None:
        """Tell what somebody else did, who has it in a log already."""
        for listener in self.listeners:
            listener(event)


@contextmanager
def opened(ledger: Ledger, listeners: Sequence[OnEvent]) -> Iterator[Teller]:
    """Make the drafts and the log of a run, yield what tells all listeners, and tidy up."""
    ledger.make_drafts()
    log = EventLog(ledger.out_dir / "events" / f"{ledger.token}.jsonl")
    tell = Teller(log, listeners)
    try:
        yield tell
    finally:
        tell(Event(kind="end"))
        log.close()
        shutil.rmtree(ledger.draft_dir, ignore_errors=True)


@contextmanager
def naming(ledger: Ledger) -> Iterator[None]:
    """Turn the system's refusal to read or write our folder into an error that names it."""
    try:
        yield
    except StoreError:
        raise  # it names the object, and says what to do
    except OSError as error:
        ours = is_fatal(error) or str(error.filename).startswith(str(ledger.out_dir))
        if not ours:
            raise
        raise ShardmillError(
            f"cannot write to {ledger.out_dir}: {error.strerror}. Free some space or get the right "
            "to write there, and run the same command again; or name another folder"
        ) from error


def remove_dead_drafts(ledger: Ledger) -> set[str]:
    """Clean up after runs that were killed, and return the tokens of the others that live.

    This is also a fence: a run that was only suspended, and wakes up after it was taken over, finds
    its drafts gone and can commit nothing.
    """
    # Every run makes its lock before its drafts: whoever has a draft here but no lock is dead.
    # The drafts are listed first, so that a run which starts meanwhile is not in the list.
    drafts = list(ledger.drafts_dir.iterdir())
    alive = {lock.holder.token for lock in read_locks(ledger.out_dir / "locks")}
    for draft_dir in drafts:
        if draft_dir.name not in alive:
            shutil.rmtree(draft_dir, ignore_errors=True)
    return alive - {ledger.token}


def remove_claims(ledger: Ledger) -> None:
    """Remove the claims of a complete folder, and what tasks left there that seem to be dead."""
    claims_dir = ledger.out_dir / "claims"
    if not claims_dir.exists():
        return
    # Several tasks may see the last receipt, and do this at the same time.
    with suppress(FileNotFoundError):
        ledger.backend.discard(list(claims_dir.iterdir()))
    if not isinstance(claims_dir, UrlPath):
        shutil.rmtree(claims_dir, ignore_errors=True)
    for lock in read_locks(ledger.out_dir / "locks"):
        if lock.name.startswith("task-") and not lock.alive:
            (ledger.out_dir / "locks" / f"{lock.name}.json").unlink(missing_ok=True)
    remove_dead_drafts(ledger)


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
