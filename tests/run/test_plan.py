"""Plans: parts make up the whole, names are checked, collecting can be done by anybody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from drivers import snapshot
from hypothesis import given
from hypothesis import strategies as st
from stages_for_tests import Lines

from shardmill.errors import ConfigError
from shardmill.model.stage import Unit
from shardmill.run.plan import collect, part_of, plan_units
from shardmill.run.runner import run_stage
from shardmill.shards.ledger import Ledger


@given(st.integers(0, 60), st.integers(1, 12))
def test_parts_are_neighbours_and_make_up_the_whole(num_units: int, num_parts: int) -> None:
    units = [Unit(name=str(i), input={}) for i in range(num_units)]
    parts = [part_of(units, (i + 1, num_parts)) for i in range(num_parts)]
    assert [unit for part in parts for unit in part] == units
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("part", [(0, 3), (4, 3), (-1, 2), (1, 0)])
def test_parts_that_are_none_are_refused(part: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="1 <= i <= n"):
        part_of([], part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Lines):
    """Units with the names that the test wants."""

    names: tuple[str, ...] = ()

    def units(self) -> Iterator[Unit]:
        return (Unit(name=name, input={}) for name in self.names)


@pytest.mark.parametrize(("names", "says"), [(("a", "b", "a"), "two units"), (("../a",), "'../a'")])
def test_names_are_checked_before_the_plan_is_written(
    tmp_path: Path, names: tuple[str, ...], says: str
) -> None:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    with pytest.raises(ConfigError, match=says):
        plan_units(ledger, Named(names=names), set)
    assert ledger.read_stage() is None


def test_collecting_again_changes_nothing(tmp_path: Path) -> None:
    run_stage(Lines(), tmp_path / "out", workers=0)
    before = snapshot(tmp_path / "out")
    ledger = Ledger(tmp_path / "out", "late")
    ledger.draft_dir.mkdir()
    units = ledger.read_units()
    assert collect(ledger, Lines(), units, max_skip_rate=0.0) == ledger.read_manifest()
    assert snapshot(tmp_path / "out") == before
    ledger.forget(["00003"])
    assert collect(ledger, Lines(), units, max_skip_rate=0.0) is None
    assert not ledger.manifest_path.exists()
