from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import FormatError
from shardmill.sources.tables.jsonarray import Cells

values = st.none() | st.integers() | st.text(max_size=8) | st.lists(st.integers(), max_size=3)
columns = st.dictionaries(
    st.text(max_size=5),
    st.lists(values, max_size=5) | st.dictionaries(st.text(max_size=4), values, max_size=5),
    max_size=4,
)


def cells_of(raw: bytes) -> list[Any]:
    return list(Cells(io.BytesIO(raw), 0, 1 << 20, Path("x.json")).all_columns())


@given(columns, st.sampled_from([None, 1]), st.booleans())
def test_every_cell_is_found_where_it_lies(made: Any, indent: int | None, escape: bool) -> None:
    raw = json.dumps(made, indent=indent, ensure_ascii=escape).encode("utf-8", "surrogatepass")
    found = cells_of(raw)
    expected = [
        (name, key, value)
        for name, column in made.items()
        for key, value in (
            column.items() if isinstance(column, dict) else (("", cell) for cell in column)
        )
    ]
    assert [(name, cell.key, json.loads(cell.record.raw)) for name, _, cell in found] == expected
    for _, is_keyed, cell in found:
        again = Cells(io.BytesIO(raw[cell.start : cell.end]), cell.start, 1 << 20, Path("x"))
        (same,) = again.cells(is_keyed=is_keyed)
        assert same.record.raw == cell.record.raw and same.end == cell.end


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b'{"a"', b'{"a":', b'{"a": 3}', b'{"a": {"b": 1}', b'{"a": {3: 1}}']
)
def test_what_is_no_object_of_columns_is_an_error(raw: bytes) -> None:
    with pytest.raises(FormatError, match=r"x\.json"):
        cells_of(raw)
