"""Room is taken again and again, and grows when it must."""

from __future__ import annotations

import numpy as np

from shardmill.storage.background import Room


def test_the_same_memory_is_taken_until_it_is_too_small() -> None:
    room = Room()
    first = room.take(100)
    assert len(first) == 100
    assert np.shares_memory(first, room.take(100))
    assert np.shares_memory(first, room.take(1))
    assert np.shares_memory(first, room.take(125))
    grown = room.take(1000)
    assert len(grown) == 1000
    assert not np.shares_memory(first, grown)
    assert len(room.take(0)) == 0
