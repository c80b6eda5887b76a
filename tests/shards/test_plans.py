"""A plan survives its file, and a file that is not a plan says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardmill.errors import FormatError
from shardmill.model.lengths import length_table
from shardmill.model.plan import PackSpec
from shardmill.packing.plan import plan_packs
from shardmill.shards.arrays import open_arrays, write_arrays
from shardmill.shards.plans import DTYPES, open_plan, write_plan


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    table = length_table([5, 9, 3, 30, 7], num_fixed=[0, 0, 0, 2, 0])
    path = tmp_path / "packs.plan"
    write_plan(path, plan_packs(table, PackSpec(capacity=10, overlong="cut", max_packs=2)))
    return path


def test_plan_survives_its_file(plan_path: Path) -> None:
    table = length_table([5, 9, 3, 30, 7], num_fixed=[0, 0, 0, 2, 0])
    made = plan_packs(table, PackSpec(capacity=10, overlong="cut", max_packs=2))
    found = open_plan(plan_path)
    for name in DTYPES:
        np.testing.assert_array_equal(getattr(found, name), getattr(made, name))
    for name in ("spec", "drop_reasons", "method", "why", "lower_bound", "counts", "num_rows"):
        assert getattr(found, name) == getattr(made, name)
    found.check_table(table)


def test_same_plan_gives_the_same_bytes(plan_path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.plan"
    write_plan(again, open_plan(plan_path))
    assert again.read_bytes() == plan_path.read_bytes()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dropped": np.array([0, 1, 99], np.uint32)}, "names a row beyond 5"),
        ({"starts": np.array([0, 9])}, "do not cover"),
        ({"starts": np.array([0, 0, 2])}, "without members"),
        ({"balanced": np.array([7, 7], np.uint32)}, "a pack that is not there"),
        ({"balanced": np.array([0], np.uint32)}, "each pack once"),
        ({"dropped": np.empty(0, np.uint32)}, "do not fit their reasons"),
        ({"members": np.array([1.0])}, "must be flat <u4"),
        ({"meta": {"spec": {"capacity": -1}}}, "spec cannot be"),
        ({"meta": {"num_rows": "many"}}, "'num_rows' must be int"),
    ],
)
def test_broken_plan_is_a_format_error(
    plan_path: Path, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    stored = open_arrays(plan_path, "plan")
    meta = {**stored.meta, **changed.pop("meta", {})}  # type: ignore[dict-item]
    path = tmp_path / "broken.plan"
    with path.open("wb") as file:
        write_arrays(file, "plan", {**stored.arrays, **changed}, meta)  # type: ignore[dict-item]
    with pytest.raises(FormatError, match=message):
        open_plan(path)
