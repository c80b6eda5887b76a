"""Notes of workers are seen by all, and faults are counted once."""

from __future__ import annotations

import os
import pickle

import pytest

from shardmill.train.watch import MAX_LISTED, Fault, TooManyFaults, Watch


def test_notes_are_shared_with_whoever_got_a_copy() -> None:
    watch = Watch(5)
    copy = pickle.loads(pickle.dumps(watch))
    copy.reading(2, pack=7, row=70)
    (place,) = watch.places()
    assert (place.pid, place.pack, place.row) == (os.getpid(), 7, 70)
    copy.resting(2)
    assert watch.places() == []
    copy.add(Fault(7, 70, "row 6 of shard a", "x" * 1000))
    copy.add(Fault(7, 70, "row 6 of shard a", "again in the next epoch"))
    (fault,) = watch.faults()
    assert str(fault) == "row 6 of shard a (row 70, pack 7): again in the next epoch"


def test_a_copy_does_not_remove_the_folder() -> None:
    watch = Watch(5)
    copy = pickle.loads(pickle.dumps(watch))
    del copy
    assert watch.folder.exists()
    folder = watch.folder
    del watch
    assert not folder.exists()


def test_a_long_list_is_cut() -> None:
    watch = Watch(MAX_LISTED + 1)
    for row in range(MAX_LISTED + 1):
        watch.add(Fault(0, row, f"name {row}", "broken"))
    with pytest.raises(TooManyFaults, match="and 2 more"):
        watch.add(Fault(0, 99, "last", "broken"))
