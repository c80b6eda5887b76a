"""Stop signals are noted once, raise when asked to, and leave the old handlers in place."""

from __future__ import annotations

import signal
import threading

import pytest

from shardmill.run.setup import StopSignals


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
