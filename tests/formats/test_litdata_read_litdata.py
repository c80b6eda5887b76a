"""LitData's chunks that are not what their index says are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from token_folder import write_token_folder

from shardmill.errors import FormatError
from shardmill.formats.litdata import LitDataFormat, LitDataReader
from shardmill.model.tokenrow import TokenRow
from shardmill.run.runner import run_stage
from shardmill.stages.export import Export


@pytest.fixture
def reader(tmp_path: Path) -> LitDataReader:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(n + 1)) for n in range(3)]
    tokens = write_token_folder(tmp_path / "tokens", [rows])
    stage = Export(input_dir=tokens, format=LitDataFormat(unlearned="learn"))
    run_stage(stage, tmp_path / "out", workers=0)
    return LitDataReader(dir=str(tmp_path / "out"))


def test_rows_come_back_by_their_bounds(reader: LitDataReader) -> None:
    (part,) = reader.parts()
    assert [r.ids().tolist() for r in reader.read(part.input)] == [[0], [0, 1], [0, 1, 2]]


def test_a_chunk_that_was_cut_off_or_points_outside_is_named(reader: LitDataReader) -> None:
    path = Path(reader.dir) / "shards" / "00000.bin"
    raw = path.read_bytes()
    (part,) = reader.parts()
    path.write_bytes(raw[:-1])
    with pytest.raises(FormatError, match="does not hold the 3 rows"):
        list(reader.read(part.input))
    path.write_bytes(raw[:16] + b"\xff\xff\0\0" + raw[20:])
    with pytest.raises(FormatError, match="outside of the file"):
        list(reader.read(part.input))


@pytest.mark.parametrize("content", [{}, {"chunks": [{}], "config": {"data_format": ["str:1"]}}])
def test_other_indexes_are_refused(reader: LitDataReader, content: dict[str, object]) -> None:
    (part,) = reader.parts()
    (Path(reader.dir) / "index.json").write_text(json.dumps(content))
    with pytest.raises(FormatError, match=r"index\.json"):
        list(reader.read(part.input))
