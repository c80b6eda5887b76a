"""The contract: what a format leaves out has a default, and pieces travel inside units."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from coded_folder import make_pair, store_coded
from hypothesis import given, settings
from hypothesis import strategies as st
from token_folder import write_token_folder

from shardmill.errors import ConfigError, ShardmillError
from shardmill.formats.format import (
    MAX_OPEN,
    ExportInput,
    Format,
    Piece,
    Slice,
    open_input,
)
from shardmill.model.stage import Draft, Tally, Unit, unit_from_plain, unit_to_plain
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.ledger import Ledger

SLICES = st.builds(Slice, st.integers(0, 99), st.integers(0, 9), st.integers(9, 99))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing(Format):
    """Writes nothing."""

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Do nothing."""


def test_only_writing_has_no_default(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="abstract"):
        Format()  # type: ignore[abstract]
    source, ranges = ExportInput(tmp_path, ()), [(), (Slice(0, 0, 3),)]
    assert list(Nothing().plan(source, ranges)) == [{}, {}]
    assert Nothing().shared_files(source, []) == {}


@given(slices=st.lists(SLICES, max_size=4), row=st.integers(0, 2**40))
def test_a_piece_travels_inside_a_unit(slices: list[Slice], row: int) -> None:
    piece = Piece("00001", tuple(slices), {"row": row})
    unit = Unit(name="00001", input=piece.to_plain())
    assert Piece.of(unit_from_plain(unit_to_plain(unit))) == piece
    assert piece.num_rows == sum(part.stop - part.start for part in slices)


def make_rows(continued: list[bool]) -> list[TokenRow]:
    return [
        TokenRow(key=f"k{n}", ids=np.arange(2), continues=goes_on and n > 0)
        for n, goes_on in enumerate(continued)
    ]


@settings(max_examples=40)
@given(
    shards=st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=4),
    num_units=st.integers(1, 9),
)
def test_parts_hold_every_row_once_and_begin_with_a_document(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[bool]], num_units: int
) -> None:
    folder = tmp_path_factory.mktemp("x") / "tokens"
    source = open_input(write_token_folder(folder, [make_rows(shard) for shard in shards]))
    ranges = source.ranges(num_units)
    assert len(ranges) == num_units
    found = [(s.shard, row) for part in ranges for s in part for row in range(s.start, s.stop)]
    assert found == [(n, row) for n, shard in enumerate(shards) for row in range(len(shard))]
    for part in ranges:
        for first in part[:1]:
            assert not source.token_shard(first.shard).continues(first.start)


def test_without_a_number_each_shard_is_a_part(tmp_path: Path) -> None:
    folder = write_token_folder(tmp_path / "x", [make_rows([False] * 3), [], make_rows([False])])
    source = open_input(folder)
    assert source.ranges(None) == [(Slice(0, 0, 3),), (Slice(1, 0, 0),), (Slice(2, 0, 1),)]
    assert source.num_rows == 4 and source.has_tokens


def test_few_shards_are_open_at_a_time(tmp_path: Path) -> None:
    shards = [make_rows([False]) for _ in range(5)]
    source = open_input(write_token_folder(tmp_path / "x", shards))
    for number in range(5):
        assert len(source.token_shard(number)) == 1
    assert len(source._open) == MAX_OPEN


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    samples, codes = store_coded(tmp_path, [make_pair("a", "x")], per_shard=1)
    with pytest.raises(ConfigError, match=r"holds no tokens.*shardmill tokenize"):
        open_input(samples).token_shard(0)
    with pytest.raises(ConfigError, match="holds no samples"):
        open_input(codes).sample_shard(0)
    tokens = write_token_folder(tmp_path / "tokens", [make_rows([False])])
    with pytest.raises(ConfigError, match="holds no samples"):
        open_input(tokens).sample_shard(0)
    with pytest.raises(ConfigError, match="is empty"):
        ExportInput(tmp_path, ()).space()


def test_a_half_written_folder_is_refused(tmp_path: Path) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [make_rows([False])])
    Ledger(tokens).manifest_path.unlink()
    with pytest.raises(ShardmillError, match="is not a dataset of shardmill"):
        open_input(tokens)
