"""A worker asks for one unit, and for a handful when units take no time."""

from __future__ import annotations

import time
from typing import Any

from stages_for_tests import Nothing

from shardmill.run.worker import MAX_ASKED, QUICK_S, Inbox


def asked_counts(num_units: int, seconds: float) -> list[int]:
    """Answer every question in full, and return what was asked for."""
    supply = Nothing(num_units=num_units).units()
    counts: list[int] = []

    def answer(message: dict[str, Any]) -> None:
        assert message["kind"] == "ask"
        counts.append(message["count"])
        for _ in range(message["count"]):
            inbox.put(next(supply, None))

    inbox = Inbox(answer)
    for _ in inbox.units():
        time.sleep(seconds)
    return counts


def test_quick_units_come_by_the_handful() -> None:
    counts = asked_counts(500, 0.0)
    assert counts[0] == 1 and max(counts) == MAX_ASKED


def test_slow_units_come_one_by_one() -> None:
    assert set(asked_counts(5, 3 * QUICK_S)) == {1}


def test_nothing_is_asked_for_while_units_wait() -> None:
    asked: list[dict[str, Any]] = []
    inbox = Inbox(asked.append)
    units = list(Nothing(num_units=3).units())
    for unit in (*units, None):
        inbox.put(unit)
    assert list(inbox.units()) == units and asked == []
