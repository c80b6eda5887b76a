"""Rows as flat arrays: the same as each row by itself, in batches of whole documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_folder import write_token_folder

from shardmill.errors import FormatError
from shardmill.formats.format import Slice, open_input
from shardmill.formats.rows import runs_between, token_slices
from shardmill.model.tokenrow import MediaSpan, TokenRow, mask_of, modality_of


def make_row(number: int, length: int, goes_on: bool) -> TokenRow:
    media = ()
    if length >= 6 and number % 2:
        kind = ("image", "video", "audio")[number % 3]
        span = MediaSpan(name="x", kind=kind, position=2, num_tokens=2, before=1, after=1)
        media = (span, replace(span, position=5, num_tokens=1, before=0, after=0))
    loss = np.array([[0, 1], [3, length - 3]]) if length > 3 and number % 3 else np.empty((0, 2))
    return TokenRow(
        key=f"web-{number:03d}" if number % 4 else f"odd{number}x",
        ids=(np.arange(length) + number) % 1000,
        loss=loss.astype(np.int64),
        media=media,
        continues=goes_on and number > 0,
    )


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=14),
    max_tokens=st.integers(1, 40),
    max_rows=st.integers(1, 9),
)
def test_flat_arrays_are_those_of_the_rows(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, bool]],
    max_tokens: int,
    max_rows: int,
) -> None:
    made = [make_row(number, *row) for number, row in enumerate(rows)]
    folder = write_token_folder(tmp_path_factory.mktemp("x") / "tokens", [made])
    source, seen = open_input(folder), []
    for part in token_slices(source, [Slice(0, 0, len(made))], max_tokens, max_rows):
        mine = made[part.start : part.stop]
        seen += mine
        assert not mine[0].continues
        assert part.documents.tolist() == [
            *(n for n, row in enumerate(mine) if not row.continues),
            len(mine),
        ]
        assert [bytes(key).decode() for key in part.key_texts()] == [row.key for row in mine]
        assert part.ids.tolist() == [i for row in mine for i in row.ids.tolist()]
        masks = [mask_of(row.loss, len(row.ids)) for row in mine]
        assert part.loss_mask().tolist() == np.concatenate(masks).astype(int).tolist()
        kinds = [modality_of(row.media, len(row.ids)) for row in mine]
        assert part.modality().tolist() == np.concatenate(kinds).tolist()
        assert int(part.fixed_mask().sum()) == sum(row.num_fixed for row in mine)
        ends = [n for n, row in enumerate(mine) if not row.continues][1:]
        if ends:  # more than one document: then the limits hold, but for the last row
            assert part.bounds[len(mine) - 1] <= max_tokens + 12 * max_rows
            assert len(mine) <= max_rows
    assert [row.key for row in seen] == [row.key for row in made]


@given(
    gaps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6),
    rest=st.sampled_from([0, 3, 2000]),
)
def test_spans_are_painted_in_their_colours(gaps: list[tuple[int, int]], rest: int) -> None:
    wanted: list[int] = []
    starts, lengths = [], []
    for number, (gap, length) in enumerate(gaps):
        wanted += [0] * gap + [number % 3 + 1] * length
        starts.append(len(wanted) - length)
        lengths.append(length)
    colours = np.arange(len(gaps)) % 3 + 1
    runs = runs_between(np.array(starts, int), np.array(lengths, int), len(wanted) + rest, colours)
    assert np.repeat(*runs).tolist() == wanted + [0] * rest


def test_runs_are_those_of_the_example() -> None:
    spans = np.array([1, 4]), np.array([2, 1])
    assert [part.tolist() for part in runs_between(*spans, 6)] == [[0, 1, 0, 1, 0], [1, 2, 1, 1, 1]]
    assert np.repeat(*runs_between(*spans, 6, np.array([3, 2]))).tolist() == [0, 3, 3, 0, 2, 0]
    nothing = np.empty(0, np.int64)
    assert np.repeat(*runs_between(nothing, nothing, 2)).tolist() == [0, 0]
    for starts, lengths in (([2, 1], [1, 1]), ([0, 1], [2, 1]), ([5], [2])):
        with pytest.raises(ValueError, match="overlap"):
            runs_between(np.array(starts), np.array(lengths), 6)


def test_rows_with_gaps_are_refused(tmp_path: Path) -> None:
    rows = [make_row(number, 5, False) for number in range(3)]
    source = open_input(write_token_folder(tmp_path / "x", [rows]))
    shard = source.token_shard(0)
    source._open[0] = replace(shard, offsets=shard.offsets[::-1].copy())
    with pytest.raises(FormatError, match="one after the other"):
        list(token_slices(source, [Slice(0, 0, 3)]))
    source._open[0] = shard
    with pytest.raises(FormatError, match="one after the other"):
        list(token_slices(source, [Slice(0, 0, 4)]))


def test_media_that_overlap_are_refused(tmp_path: Path) -> None:
    span = MediaSpan(name="x", kind="image", position=1, num_tokens=4)
    row = TokenRow(key="a", ids=np.arange(9), media=(span, replace(span, position=3)))
    source = open_input(write_token_folder(tmp_path / "x", [[row]]))
    (part,) = token_slices(source, [Slice(0, 0, 1)])
    with pytest.raises(FormatError, match="overlap"):
        part.modality()
