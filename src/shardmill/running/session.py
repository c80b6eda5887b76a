"""What surrounds a run or a task: its drafts and its log, stop signals, and removing what is dead.

A run that is killed leaves drafts, a lock and claims behind. The next run removes drafts that have
no lock, and whoever completes a folder removes the claims and the locks of tasks that are dead.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from shardmill.errors import ShardmillError, StoreError
from shardmill.running.events import Event, EventHub, EventLog, OnEvent
from shardmill.running.lock import read_locks
from shardmill.running.worker import is_fatal
from shardmill.shards.ledger import Ledger
from shardmill.storage.path import UrlPath


@contextmanager
def open_session(ledger: Ledger, listeners: Sequence[OnEvent]) -> Iterator[EventHub]:
    """Make the drafts and the log of a run, yield where its events go, and remove the drafts."""
    ledger.make_drafts()
    log = EventLog(ledger.out_dir / "events" / f"{ledger.token}.jsonl")
    hub = EventHub(log, listeners)
    try:
        yield hub
    finally:
        hub(Event(kind="end"))
        log.close()
        shutil.rmtree(ledger.draft_dir, ignore_errors=True)


@contextmanager
def explain_refusals(ledger: Ledger) -> Iterator[None]:
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
    """Remove the drafts of runs that were killed, and return the tokens of the others that live.

    A run that was only suspended, and wakes up after it was taken over, finds its drafts gone and
    can commit nothing.
    """
    # Every run makes its lock before its drafts: whoever has a draft here but no lock is dead.
    # The drafts are listed first, so that a run which starts meanwhile is not in the list.
    drafts = list(ledger.drafts_dir.iterdir())
    alive = {lock.owner.token for lock in read_locks(ledger.out_dir / "locks")}
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


def raise_interrupted(number: int, out_dir: Path) -> NoReturn:
    """Raise `Interrupted` with the name of the signal and how to go on."""
    raise Interrupted(
        number,
        f"stopped by {signal.Signals(number).name}; what is done is kept in {out_dir}: run the "
        "same command again to go on",
    )


class StopSignals:
    """While the block runs, `number` is the first of Ctrl-C and SIGTERM that came, or 0.

    With `raising`, the signal also ends the work at hand with `KeyboardInterrupt`; a second signal
    always does. SIGUSR1 calls `on_drain`, if that is given: the time is nearly over, begin nothing
    new. Outside the main thread Python cannot receive signals, and this does nothing.
    """

    def __init__(self, *, raising: bool, on_drain: Callable[[], None] | None = None) -> None:
        self.number = 0
        self._raising, self._on_drain = raising, on_drain
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
            if self._on_drain is not None:
                drain = self._on_drain
                self._before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, lambda *_: drain())
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
