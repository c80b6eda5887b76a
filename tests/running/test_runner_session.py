"""A run's drafts, log and signals: there while it runs, removed however it ends."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import pytest
from other_tasks import write_lock

from shardmill.errors import ShardmillError
from shardmill.running.events import Event, read_log
from shardmill.running.lock import this_process
from shardmill.running.runner import (
    StopSignals,
    explain_refusals,
    open_session,
    remove_claims,
    remove_dead_drafts,
)
from shardmill.shards.ledger import Ledger


def test_our_own_events_are_logged_and_those_of_others_only_told(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    heard: list[Event] = []
    with pytest.raises(ValueError, match="a bug"), open_session(ledger, [heard.append]) as tell:
        assert ledger.draft_dir.is_dir()
        tell(Event(kind="done", unit="mine"))
        tell.relay(Event(kind="done", unit="theirs"))
        raise ValueError("a bug")
    assert [event.unit for event in heard if event.kind == "done"] == ["mine", "theirs"]
    logged = [entry.event for entry in read_log(ledger.out_dir / "events" / "run.jsonl")]
    assert [(event.kind, event.unit) for event in logged] == [("done", "mine"), ("end", "")]
    assert not ledger.draft_dir.exists()


def make_folder(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "out", "me")
    ledger.make_folders()
    for token in ("me", "alive", "dead", "gone"):
        (ledger.drafts_dir / token / "unit-1").mkdir(parents=True)
    locks_dir = ledger.out_dir / "locks"
    for token in ("me", "alive"):
        write_lock(locks_dir, token, beat=1, place=this_process(token).place)
    write_lock(locks_dir, "dead", beat=1)
    os.utime(locks_dir / "task-dead.json", (0, 0))
    return ledger


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_drafts_without_a_lock_are_removed(tmp_path: Path) -> None:
    ledger = make_folder(tmp_path)
    assert remove_dead_drafts(ledger) == {"alive", "dead"}
    assert names(ledger.drafts_dir) == ["alive", "dead", "me"]


def test_a_complete_folder_keeps_nothing_of_tasks_that_are_dead(tmp_path: Path) -> None:
    ledger = make_folder(tmp_path)
    remove_claims(ledger)
    assert "dead" in names(ledger.drafts_dir), "without claims there were no tasks"
    (ledger.out_dir / "claims").mkdir()
    remove_claims(ledger)
    assert names(ledger.out_dir / "locks") == ["task-alive.json", "task-me.json"]
    assert names(ledger.drafts_dir) == ["alive", "me"]
    assert not (ledger.out_dir / "claims").exists()


@pytest.mark.parametrize(
    ("number", "name", "ours"),
    [
        (errno.EACCES, "out/receipts/x", True),
        (errno.ENOSPC, "elsewhere", True),
        (errno.EACCES, "elsewhere", False),
    ],
)
def test_what_is_ours_is_named(tmp_path: Path, number: int, name: str, ours: bool) -> None:
    error = OSError(number, "it will not do", str(tmp_path / name))
    kind = ShardmillError if ours else OSError
    with (
        pytest.raises(kind, match="will not do") as caught,
        explain_refusals(Ledger(tmp_path / "out")),
    ):
        raise error
    assert ("cannot write to" in str(caught.value)) == ours


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_noted_the_second_raises(number: signal.Signals) -> None:
    with StopSignals(raising=False) as signals:
        assert signals.number == 0
        signal.raise_signal(number)
        assert signals.number == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_when_asked_to_the_first_raises() -> None:
    with StopSignals(raising=True) as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert signals.number == signal.SIGTERM


def test_afterwards_all_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopSignals(raising=False):
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_outside_the_main_thread_it_does_nothing() -> None:
    seen = []

    def enter() -> None:
        with StopSignals(raising=False) as signals:
            seen.append(signals.number)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [0]
