"""Runs say what they were made of; `test_parquetfile` lets other readers say the same."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.formats.huggingface.parquet import list_levels, plain_numbers, runs, value_levels


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (content[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not content[at - 1] & 0x80:
            return number, at


def read_runs(content: bytes) -> list[tuple[int, int]]:
    """Return (value, count) of runs of one value."""
    found, at = [], 0
    while at < len(content):
        header, at = read_varint(content, at)
        assert header & 1 == 0
        found.append((content[at], header >> 1))
        at += 1
    return found


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 2, 63, 64, 9000, 1 << 21]))))
def test_runs_come_back_joined(pairs: list[tuple[int, int]]) -> None:
    values, counts = (np.array(column, np.int64) for column in (zip(*pairs) if pairs else ([], [])))
    found = read_runs(runs(values, counts))
    assert all(count > 0 for _, count in found)
    assert all(a != b for (a, _), (b, _) in pairwise(found))
    wanted: list[list[int]] = []
    for value, count in pairs:
        if wanted and wanted[-1][0] == value:
            wanted[-1][1] += count
        elif count:
            wanted.append([value, count])
    assert [list(pair) for pair in found] == wanted


@given(st.lists(st.integers(0, 65_535), max_size=40))
def test_numbers_fill_groups_of_eight(numbers: list[int]) -> None:
    header, values, rest = plain_numbers(np.array(numbers, np.uint16))
    stored = np.frombuffer(values.tobytes() + rest, "<u2").tolist()
    assert stored[: len(numbers)] == numbers
    assert len(stored) % 8 == 0
    assert len(stored) < len(numbers) + 8
    if numbers:
        assert read_varint(header, 0) == (len(stored) // 8 << 1 | 1, len(header))
    else:
        assert header == b""


@given(st.lists(st.integers(0, 300), max_size=20))
def test_levels_tell_lists_apart(lengths: list[int]) -> None:
    num_levels, content = list_levels(np.cumsum([0, *lengths]))
    (size,) = struct.unpack_from("<I", content)
    repetition, definition = content[4 : 4 + size], content[8 + size :]
    assert struct.unpack_from("<I", content, 4 + size) == (len(definition),)
    repeats = [value for value, count in read_runs(repetition) for _ in range(count)]
    defines = [value for value, count in read_runs(definition) for _ in range(count)]
    assert num_levels == len(repeats) == len(defines)
    assert repeats == [int(at > 0) for n in lengths for at in range(max(n, 1))]
    assert defines == [3 if n else 1 for n in lengths for _ in range(max(n, 1))]


def test_values_are_all_there() -> None:
    assert value_levels(5) == struct.pack("<I", 2) + bytes([10, 1])
