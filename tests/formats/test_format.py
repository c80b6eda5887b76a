"""The contract: what a format leaves out has a default, and pieces travel inside units."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.formats.format import ExportInput, Format, Piece, Slice, piece_of, piece_to_plain
from shardmill.model.stage import Draft, Tally, Unit, unit_from_plain, unit_to_plain

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
    unit = Unit(name="00001", input=piece_to_plain(slices, {"row": row}))
    piece = piece_of(unit_from_plain(unit_to_plain(unit)))
    assert piece == Piece("00001", tuple(slices), {"row": row})
    assert piece.num_rows == sum(part.stop - part.start for part in slices)
