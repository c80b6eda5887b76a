"""Rows without padding: the compiled loops and numpy agree, and both do what a loop would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import DrawFn, composite, integers, lists, sampled_from

from shardmill.errors import FormatError
from shardmill.formats.unidisc import read as paddedrows
from shardmill.formats.unidisc.read import (
    IdRule,
    Rows,
    copy_ids,
    find_runs,
    plain_copy,
    plain_lengths,
    plain_runs,
    prefix_lengths,
)
from shardmill.model.space import TokenSpace

needs_compiler = pytest.mark.skipif(paddedrows._paddedrows is None, reason="it was not compiled")
WIDTHS = (1, 5, 8, 16, 31)
RULE = IdRule(size=150, run_size=50, shift=100)
SOURCES = ("int16", "uint16", "int32", "int64")
TARGETS = ("<u2", "<i4")


@composite
def rows_of_values(draw: DrawFn) -> tuple[Any, Rows]:
    """Return values of 0, 1 and -1, and rows of them in any order, which may overlap."""
    values = draw(lists(sampled_from([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, -1]), max_size=60))
    count = draw(integers(0, 5))
    places = [
        sorted(draw(lists(integers(0, len(values)), min_size=2, max_size=2))) for _ in range(count)
    ]
    first = np.array([a for a, _ in places], np.int64)
    return np.array(values, np.int8), Rows(first, np.array([b for _, b in places], int) - first)


@pytest.mark.parametrize("measure", [prefix_lengths, plain_lengths])
@given(count=integers(0, 4), width=sampled_from(WIDTHS), seed=integers(0, 2**32))
def test_a_mask_is_a_prefix_or_not(measure: Any, count: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    mask = np.arange(width) < random.integers(0, width + 1, (count, 1))
    numbers = random.permutation(count)
    lengths = measure(mask, numbers)
    assert lengths is not None
    assert lengths.tolist() == mask.sum(axis=1)[numbers].tolist()
    if count and width > 1:
        row, place = random.integers(0, count), random.integers(0, width)
        mask[row, place] = not mask[row, place]
        is_prefix = bool((np.diff(mask.astype(int), axis=1) <= 0).all())
        assert (measure(mask, numbers) is not None) == is_prefix


@pytest.mark.parametrize("measure", [prefix_lengths, plain_lengths])
def test_a_mask_of_other_numbers_is_none(measure: Any) -> None:
    assert measure(np.array([[1, 2, 0]], np.uint8), np.array([0])) is None
    assert measure(np.array([[1, 1, 0]], np.int64), np.array([0])) == [2]


@pytest.mark.parametrize("look", [find_runs, plain_runs])
@given(drawn=rows_of_values())
def test_runs_are_where_the_value_stands(look: Any, drawn: tuple[Any, Rows]) -> None:
    values, rows = drawn
    runs = look(values, rows, 1).tolist()
    covered = [(row, start + k) for row, start, length in runs for k in range(length)]
    ones = [
        (row, k)
        for row, (first, length) in enumerate(zip(rows.first.tolist(), rows.lengths.tolist()))
        for k in range(length)
        if values[first + k] == 1
    ]
    assert covered == ones
    ends = {(row, start + length) for row, start, length in runs}
    assert not ends & {(row, start) for row, start, _ in runs}


def test_there_is_room_for_any_number_of_runs() -> None:
    values = np.tile(np.array([0, 1], np.int8), 40)
    runs = find_runs(values, Rows(np.array([0]), np.array([80])), 1)
    assert runs.tolist() == [[0, 2 * k + 1, 1] for k in range(40)]


@pytest.mark.parametrize("copy", [copy_ids, plain_copy])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
@given(drawn=rows_of_values(), gap=integers(0, 2), seed=integers(0, 2**32))
def test_ids_are_copied_and_runs_shifted(
    copy: Any, source: str, target: str, drawn: tuple[Any, Rows], gap: int, seed: int
) -> None:
    kinds, rows = drawn
    ids = np.random.default_rng(seed).integers(0, 50, len(kinds)).astype(source)
    count = len(rows.lengths)
    to = rows.starts + gap * np.arange(count)
    out = np.full(int(rows.lengths.sum()) + gap * count, 7, target)
    copy(ids, rows, plain_runs(kinds, rows, 1), RULE, out, to)
    shifted = ids.astype(int) + 100 * (kinds == 1)
    wanted = [
        [*shifted[first : first + length].tolist(), *[7] * gap]
        for first, length in zip(rows.first.tolist(), rows.lengths.tolist())
    ]
    assert out.tolist() == [id_ for row in wanted for id_ in row]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("value", "place", "message"),
    [
        (150, 2, "the id 150 among its tokens, the token space has 150"),
        (-1, 0, "the id -1 among its tokens"),
        (50, 1, "the code 50 in an image, the token space has 50"),
        (-2, 1, "the code -2 in an image"),
        # In 16 bits it would be an id again, this one with the shift.
        (65_530, 1, "the code 65530 in an image"),
        (65_537, 2, "the id 65537 among its tokens"),
    ],
)
def test_ids_outside_of_the_space_are_named(
    source: str, target: str, value: int, place: int, message: str
) -> None:
    ids = np.array([1, 2, 3], np.promote_types(source, np.min_scalar_type(value)))
    ids[place] = value
    rows, runs = Rows(np.array([0]), np.array([3])), np.array([[0, 1, 1]])
    with pytest.raises(FormatError, match=message):
        copy_ids(ids, rows, runs, RULE, np.empty(3, target), np.array([0]))


def test_a_space_without_codes_has_rows_of_text() -> None:
    rule = IdRule.of(TokenSpace(text_size=9), is_shifted=False)
    rows, ids = Rows(np.array([1]), np.array([2])), np.array([0, 8, 7], np.int16)
    out, to = np.empty(2, "<u2"), np.array([0])
    copy_ids(ids, rows, np.empty((0, 3), np.int64), rule, out, to)
    assert out.tolist() == [8, 7]
    with pytest.raises(FormatError, match="the code 8 in an image, the token space has 0"):
        copy_ids(ids, rows, np.array([[0, 0, 1]]), rule, out, to)


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        {"first": [2]},
        {"first": [-1]},
        {"first": [0, 0]},
        {"lengths": [4]},
        {"lengths": [-1]},
        {"runs": [[0, 2, 2]]},
        {"runs": [[0, -1, 1]]},
        {"runs": [[1, 0, 1]]},
        {"runs": [[0, 1, 1], [0, 0, 1]]},
        {"to": [1]},
        {"to": [-1]},
        {"to": []},
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    at = {"first": [0], "lengths": [3], "runs": [[0, 1, 1]], "to": [0], **change}
    first, lengths, runs, to = (np.array(numbers, np.int64) for numbers in at.values())
    ids, out = np.zeros(3, np.uint16), np.empty(3, np.uint16)
    with pytest.raises(ValueError, match="do not fit"):
        paddedrows._paddedrows.copy_rows(ids, 2, first, lengths, runs, to, out, 2, 9, 9, 0)
