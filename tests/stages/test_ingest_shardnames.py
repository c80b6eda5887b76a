from __future__ import annotations

import pytest

from shardmill.errors import ConfigError
from shardmill.model.stage import Unit
from shardmill.stages.ingest import ShardNames


def names(pattern: str, count: int = 3) -> list[str]:
    unit = Unit(name="000042", input={"start": 500}, num_samples=100)
    return [ShardNames(pattern).of_unit(unit, machine=7)(split) for split in range(count)]


def test_patterns() -> None:
    assert names("{unit:06d}") == ["000042", "000042-001", "000042-002"]
    assert names("cc-{unit}-{tar:02d}.tar") == ["cc-42-00", "cc-42-01", "cc-42-02"]
    assert names("shard-{machine}-{start}-{end}-{tar}.tar", 1) == ["shard-7-500-600-0"]


def test_names_of_splits_sort_in_order() -> None:
    assert names("{unit:06d}", 30) == sorted(names("{unit:06d}", 30))


def test_rows_are_counted_only_if_they_are_named() -> None:
    assert ShardNames("{start}-{end}").needs_range
    assert not ShardNames("{unit}").needs_range


@pytest.mark.parametrize(
    "pattern",
    ["", "x", "{machine}", "{unit}/x", "../{unit}", ".{unit}", "{unit", "{unit!q}"]
    + ["{user}-{unit}", "{}", "{unit.real.__class__}", "{unit:s}", "{unit} x"],
)
def test_what_would_not_do_as_a_file_name_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="name "):
        ShardNames(pattern)
