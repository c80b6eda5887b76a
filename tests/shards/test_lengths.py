"""A length table survives its file, and a file that is not one says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import FormatError
from shardmill.model.lengths import COLUMNS, length_table
from shardmill.shards.arrays import write_arrays
from shardmill.shards.lengths import open_lengths, write_lengths


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 2**31 - 1), st.integers(0, 1), st.integers(0, 2)), max_size=20
    ),
    exact=st.booleans(),
)
def test_table_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], exact: bool
) -> None:
    table = length_table(
        np.array([r[0] for r in rows], np.int32),
        num_visual=np.array([r[1] for r in rows], np.int32),
        source=np.array([r[2] for r in rows], np.uint16),
        source_names=["web", "ocr", "vidéo"],
        shard_names=["00000"],
        shard_starts=[0, len(rows)],
        exact=exact,
    )
    path = tmp_path_factory.mktemp("lengths") / "lengths.arrays"
    write_lengths(path, table)
    found = open_lengths(path)
    for name in (*COLUMNS, "shard_starts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(table, name))
    assert (found.source_names, found.exact, found.digest) == (
        table.source_names,
        exact,
        table.digest,
    )


@pytest.mark.parametrize(
    ("arrays", "meta", "message"),
    [
        ({"num_tokens": np.ones(3, np.int64)}, {}, "must be <i4 with 3 rows"),
        ({"num_visual": np.ones(2, np.int32)}, {}, "'num_visual' must be <i4 with 3 rows"),
        ({"shard_starts": np.zeros(2, np.int64)}, {}, "shard_starts do not match"),
        ({}, {"source_names": [1]}, "'source_names' must be a list"),
        ({}, {"exact": "yes"}, "lacks 'exact'"),
    ],
)
def test_hostile_file_is_a_format_error(
    tmp_path: Path, arrays: dict[str, np.ndarray], meta: dict[str, object], message: str
) -> None:
    good = {"num_tokens": np.ones(3, np.int32), "shard_starts": np.zeros(1, np.int64)}
    names = {"source_names": ["a"], "reject_reasons": [], "shard_names": []}
    path = tmp_path / "bad"
    with path.open("wb") as file:
        write_arrays(
            file, "lengths", {**good, **arrays}, {**names, "exact": True, "digest": "", **meta}
        )
    with pytest.raises(FormatError, match=message):
        open_lengths(path)


def test_other_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    with path.open("wb") as file:
        write_arrays(file, "plan", {}, {})
    with pytest.raises(FormatError, match="holds 'plan', not 'lengths'"):
        open_lengths(path)
