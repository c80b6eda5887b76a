"""Parquet of token rows holds what Arrow files of the same rows hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_folder import write_token_folder

from shardmill.formats.format import Piece, Slice, open_input
from shardmill.formats.huggingface import format as hf
from shardmill.formats.huggingface.format import COLUMNS, HuggingFaceFormat
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally
from shardmill.model.tokenrow import MediaSpan, TokenRow

KEYS = ("web-{}", "é/{}", "{:08d}", "no number {}x")


def make_row(number: int, length: int, top: int) -> TokenRow:
    media: tuple[MediaSpan, ...] = ()
    if length > 4 and number % 2:
        kind = ("image", "video", "audio")[number % 3]
        media = (MediaSpan(name="x", kind=kind, position=1, num_tokens=length - 3),)
    loss = np.array([[1, 1], [3, length - 3]]) if length > 3 and number % 3 else np.empty((0, 2))
    return TokenRow(
        key=KEYS[number % 4].format(number),
        ids=(np.arange(length) * 997 + top * (number % 2)) % (top + 1),
        loss=loss.astype(np.int64),
        media=media,
    )


def tables(folder: Path, rows: list[TokenRow], space: TokenSpace) -> list[Any]:
    """Return the tables of the Arrow and of the parquet export."""
    source = open_input(write_token_folder(folder / "tokens", [rows], space))
    piece, draft = Piece("x", (Slice(0, 0, len(rows)),), {}), Draft(folder)
    for files in ("arrow", "parquet"):
        form = HuggingFaceFormat(files=files, columns=COLUMNS)  # type: ignore[arg-type]
        form.write(source, piece, draft, Tally())
    with pa.memory_map(str(folder / "x.arrow")) as file:
        arrow = pa.ipc.open_stream(file).read_all()
    return [arrow, pyarrow.parquet.read_table(folder / "x.parquet")]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=20),
    size=st.sampled_from([100, 65_535, 65_536, 70_000]),
    group_tokens=st.sampled_from([1, 60, 1 << 20]),
)
def test_it_holds_what_arrow_holds(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int, group_tokens: int
) -> None:
    rows = [make_row(number, length, size - 1) for number, length in enumerate(lengths)]
    folder = tmp_path_factory.mktemp("x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf, "GROUP_TOKENS", group_tokens)
        arrow, parquet = tables(folder, rows, TokenSpace(text_size=size))
    assert parquet.schema.equals(arrow.schema)
    assert parquet.schema.metadata == arrow.schema.metadata
    assert parquet.to_pylist() == arrow.to_pylist()
    assert [row["key"] for row in parquet.to_pylist()] == [row.key for row in rows]
    # Readers that share no code with pyarrow.
    assert polars.read_parquet(folder / "x.parquet").to_dicts() == arrow.to_pylist()
    found = duckdb.sql(f"FROM '{folder / 'x.parquet'}'")
    assert [dict(zip(found.columns, row)) for row in found.fetchall()] == arrow.to_pylist()


def test_ids_take_two_bytes_and_masks_nothing(tmp_path: Path) -> None:
    rows = [replace(make_row(1, 5000, 999), key=f"{n:04d}") for n in range(40)]
    tables(tmp_path, rows, TokenSpace(text_size=1000))
    found = pyarrow.parquet.ParquetFile(tmp_path / "x.parquet").metadata
    group = found.row_group(0)
    sizes = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    bytes_of = {name.split(".")[0]: c.total_compressed_size for name, c in sizes.items()}
    assert 400_000 < bytes_of["input_ids"] < 405_000
    assert 400_000 < bytes_of["labels"] < 405_000
    assert bytes_of["loss_mask"] < 1000
    assert bytes_of["modality"] < 1000
