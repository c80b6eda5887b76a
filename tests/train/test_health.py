"""Notes of workers are seen by all, and faults are counted once."""

from __future__ import annotations

import os
import pickle

import pytest

from shardmill.train.health import MAX_LISTED, Health, SampleFault, TooManyFaults


def test_notes_are_shared_with_whoever_got_a_copy() -> None:
    health = Health(5)
    copy = pickle.loads(pickle.dumps(health))
    copy.reading(2, pack=7, row=70)
    (place,) = health.positions()
    assert (place.pid, place.pack, place.row) == (os.getpid(), 7, 70)
    copy.resting(2)
    assert health.positions() == []
    copy.add(SampleFault(7, 70, "row 6 of shard a", "x" * 1000))
    copy.add(SampleFault(7, 70, "row 6 of shard a", "again in the next epoch"))
    (fault,) = health.faults()
    assert str(fault) == "row 6 of shard a (row 70, pack 7): again in the next epoch"


def test_a_copy_does_not_remove_the_folder() -> None:
    health = Health(5)
    copy = pickle.loads(pickle.dumps(health))
    del copy
    assert health.folder.exists()
    folder = health.folder
    del health
    assert not folder.exists()


def test_a_long_list_is_cut() -> None:
    health = Health(MAX_LISTED + 1)
    for row in range(MAX_LISTED + 1):
        health.add(SampleFault(0, row, f"name {row}", "broken"))
    with pytest.raises(TooManyFaults, match="and 2 more"):
        health.add(SampleFault(0, 99, "last", "broken"))
