"""Calls run in order beside their caller, and never share memory with what is made meanwhile."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from shardmill.storage.background import Room, Scribe, in_turns


def test_a_call_runs_beside_the_caller_and_the_next_one_waits_for_it() -> None:
    go, order = threading.Event(), []
    with Scribe() as scribe:
        scribe.write(lambda: (go.wait(), order.append(1)))
        order.append(0)  # the first call has not ended, since nobody let it go
        threading.Timer(0.05, go.set).start()
        scribe.write(order.append, 2)
        scribe.wait()
    assert order == [0, 1, 2]


def test_what_is_written_has_its_memory_to_itself() -> None:
    go, written = threading.Event(), []
    rooms = in_turns(Room)
    with Scribe() as scribe:
        for number in range(4):
            content = next(rooms).take(8)
            content[:] = number
            if number == 1:
                go.set()
            scribe.write(lambda content: (go.wait(), written.append(content.copy())), content)
    assert [int(np.unique(content).item()) for content in written] == [0, 1, 2, 3]


def fail() -> None:
    raise OSError("no room")


def test_an_error_is_raised_by_the_next_call_or_at_the_end() -> None:
    with pytest.raises(OSError, match="no room"), Scribe() as scribe:
        scribe.write(fail)
        scribe.write(print)
        raise AssertionError("it went on")
    with pytest.raises(OSError, match="no room"), Scribe() as scribe:
        scribe.write(fail)


def test_the_caller_s_own_error_comes_first() -> None:
    with pytest.raises(KeyError), Scribe() as scribe:
        scribe.write(fail)
        raise KeyError("mine")
    assert not [t for t in threading.enumerate() if t.name.startswith("write")]
