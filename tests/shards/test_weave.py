"""Weaving is joining rows; compiled and plain agree, and nothing is read outside of its data."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import binary, integers, lists, sampled_from, tuples

from shardmill.shards.weave import (
    Column,
    _weave,
    between,
    cells,
    constant,
    filling,
    rises,
    texts,
    weave,
    weave_plainly,
    write_rows,
)

NOISE = np.random.default_rng(0).bytes(1_200_000)
ROWS = integers(0, 6).flatmap(
    lambda n: lists(lists(binary(max_size=9), min_size=n, max_size=n), min_size=1, max_size=4)
)


@given(ROWS)
def test_rows_are_joined_in_order(contents: list[list[bytes]]) -> None:
    columns = [texts(column) for column in contents]
    woven = weave(columns)
    assert [bytes(woven[row]) for row in range(len(woven))] == [
        b"".join(row) for row in zip(*contents)
    ]
    plain = np.empty_like(woven.data)
    weave_plainly(columns, plain)
    assert plain.tobytes() == woven.data.tobytes()


@given(lists(integers(0, 20), max_size=9), binary(min_size=1, max_size=5))
def test_what_all_rows_share_is_stored_once(lengths: list[int], content: bytes) -> None:
    counts = np.array(lengths, np.int64)
    woven = weave([constant(content, len(lengths)), filling(counts)])
    assert woven.data.tobytes() == b"".join(content + bytes(n) for n in lengths)


@given(lists(tuples(integers(0, 9), integers(0, 9)), max_size=9))
def test_tables_and_parts_of_arrays_are_columns(pairs: list[tuple[int, int]]) -> None:
    table = np.array(pairs, np.uint16).reshape(-1, 2)
    bounds = 2 * np.arange(len(pairs) + 1)
    flat = table.reshape(-1)
    assert weave([cells(table)]).data.tobytes() == table.tobytes()
    assert weave([between(flat, bounds)]).data.tobytes() == table.tobytes()
    some = np.arange(len(pairs)) % 2 == 0
    assert weave([cells(table).taken(some)]).data.tobytes() == table[some].tobytes()


@pytest.mark.skipif(_weave is None, reason="there was no compiler")
@pytest.mark.parametrize(
    ("starts", "lengths", "room"),
    [
        ([0, 8], [4, 4], 8),
        ([-1, 0], [4, 4], 8),
        ([0, 0], [4, -4], 0),
        ([0, 1 << 62], [4, 4], 8),
        ([0, 4], [4, 1 << 62], 8),
        ([0, 4], [4, 4], 7),
        ([0, 4], [4, 4], 9),
        ([0, 4], [4], 8),
    ],
)
def test_what_does_not_fit_is_refused(starts: list[int], lengths: list[int], room: int) -> None:
    data = np.zeros(8, np.uint8)
    column = (data, np.array(starts, np.int64), np.array(lengths, np.int64))
    with pytest.raises(ValueError, match="do not fit"):
        _weave.weave([column], np.empty(room, np.uint8))


@pytest.mark.skipif(_weave is None, reason="there was no compiler")
def test_other_types_are_refused() -> None:
    data, good = np.zeros(8, np.uint8), np.zeros(2, np.int64)
    for bad in (np.zeros(2), np.zeros(2, np.int32), np.zeros((2, 2), np.int64)):
        with pytest.raises(ValueError, match="int64"):
            _weave.weave([(data, bad, good)], np.empty(0, np.uint8))
    with pytest.raises(TypeError):
        _weave.weave([(data, good)], np.empty(0, np.uint8))


def test_a_row_is_a_view() -> None:
    column = Column(np.arange(6, dtype=np.uint8), np.array([4, 0]), np.array([2, 3]))
    assert [bytes(column[0]), bytes(column[1])] == [b"\x04\x05", b"\x00\x01\x02"]


# A piece of memory through which rows are written holds 262,144 bytes.
@given(lists(lists(sampled_from([0, 1, 9, 131_072, 262_143, 262_145, 600_000]), max_size=5)))
@pytest.mark.parametrize("compiled", [_weave, None])
def test_files_have_the_bytes_of_all_batches(
    tmp_path_factory: pytest.TempPathFactory, compiled: object, batches: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows"
    rows = [[NOISE[size : 2 * size] for size in sizes] for sizes in batches]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardmill.shards.weave._weave", compiled)
        write_rows(path, [[texts(some), constant(b"!", len(some))] for some in rows])
    assert path.read_bytes() == b"".join(row + b"!" for some in rows for row in some)


@pytest.mark.parametrize("num_bytes", [10, 1_000_000])
def test_a_full_disk_is_an_error(num_bytes: int) -> None:
    with pytest.raises(OSError, match="No space left"):
        write_rows(Path("/dev/full"), [[constant(bytes(num_bytes), 1)]])


def test_a_row_outside_of_its_data_is_not_written(tmp_path: Path) -> None:
    beyond = Column(np.arange(6, dtype=np.uint8), np.array([0, 4]), np.array([2, 3]))
    with pytest.raises(ValueError, match="do not fit"):
        write_rows(tmp_path / "rows", [[beyond]])


@given(lists(binary().map(lambda row: row.replace(b"\0", b"")), max_size=5), binary(max_size=2))
def test_rows_rise_if_each_is_greater_than_the_one_before(rows: list[bytes], after: bytes) -> None:
    everything = [after, *rows]
    is_rising = all(a < b for a, b in pairwise(everything))
    assert rises(texts(rows), after) == is_rising
    if rows:
        ordered = sorted({*rows})
        assert rises(texts(ordered), ordered[0]) == (len(ordered) == 0)
        assert rises(texts(ordered[1:]), ordered[0])
