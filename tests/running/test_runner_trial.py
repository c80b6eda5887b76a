"""A trial works a few units that are spread over all of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from stages_for_tests import Lines

from shardmill.model.stage import Unit
from shardmill.running.events import Event
from shardmill.running.runner import UnitTimes, spread, try_units
from shardmill.shards.ledger import Ledger


@given(st.integers(0, 50), st.integers(1, 60))
def test_tried_units_differ_and_are_spread_evenly(num_units: int, count: int) -> None:
    units = [Unit(name=str(n), input={}) for n in range(num_units)]
    places = [units.index(unit) for unit in spread(units, count)]
    assert len(places) == min(count, num_units)
    steps = {after - before for before, after in pairwise(places)}
    assert all(step >= 1 for step in steps)
    assert max(steps, default=0) - min(steps, default=0) <= 1


def test_a_trial_folder_holds_the_tried_units_and_is_complete(tmp_path: Path) -> None:
    stage = Lines(num_units=9)
    tried = try_units(stage, tmp_path / "out", num_units=3, workers=1, max_skip_rate=0.0)
    assert (tried.num_units, tried.num_tried) == (9, 3)
    ledger = Ledger(tmp_path / "out")
    assert [unit.name for unit in ledger.read_units()] == ["00001", "00004", "00007"]
    assert ledger.read_manifest() == tried.manifest


def test_first_unit_of_a_process_counts_only_if_it_is_its_last() -> None:
    times = UnitTimes()
    for pid, seconds in ((1, 9.0), (1, 1.0), (1, 3.0), (2, 5.0)):
        times(Event(kind="done", pid=pid, seconds=seconds, cpu_seconds=seconds / 2))
    assert times.mean() == (3.0, 1.5)
    assert UnitTimes().mean() == (0.0, 0.0)
