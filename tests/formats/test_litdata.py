"""LitData's chunks: dtypes, sizes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lossy_export import lossy_export
from token_folder import write_token_folder

from shardmill.errors import ConfigError, FormatError
from shardmill.formats import litdata
from shardmill.formats.litdata import LitDataFormat, LitDataReader
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.stages.export import ExportShards


def learned_row(number: int, length: int, num_learned: int | None = None) -> TokenRow:
    """Return a row of which all tokens are learned, or the last ones."""
    count = length if num_learned is None else num_learned
    loss = np.array([[length - count, count]])[: count > 0]
    return TokenRow(key=f"k{number}", ids=np.arange(length), loss=loss.reshape(-1, 2))


def export(tmp_path: Path, size: int, **fields: Any) -> Path:
    rows = [learned_row(n, n + 1) for n in range(5)]
    space = TokenSpace(text_size=size)
    tokens = write_token_folder(tmp_path / "tokens", [rows[:3], [], rows[3:]], space)
    stage = ExportShards(input_dir=tokens, format=LitDataFormat(**fields))
    assert run_stage(stage, tmp_path / "out", workers=0).complete
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("size", "fields", "number", "itemsize"),
    [(1000, {}, 20, 2), (1000, {"dtype": "int32"}, 15, 4), (70_000, {}, 15, 4)],
)
def test_the_type_of_ids_is_told_by_its_number(
    tmp_path: Path, size: int, fields: dict[str, Any], number: int, itemsize: int
) -> None:
    out = export(tmp_path, size, **fields)
    index = json.loads((out / "index.json").read_text())
    assert index["config"]["data_format"] == [f"no_header_tensor:{number}"]
    assert [chunk["dim"] for chunk in index["chunks"]] == [6, 9]
    first = index["chunks"][0]
    raw = (out / first["filename"]).read_bytes()
    assert len(raw) == first["chunk_bytes"] == 4 * 5 + 6 * itemsize
    dtype = "<u2" if itemsize == 2 else "<i4"
    assert np.frombuffer(raw[20:], dtype).tolist() == [0, 0, 1, 0, 1, 2]


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="export with dtype=int32"):
        export(tmp_path / "a", 70_000, dtype="uint16")
    monkeypatch.setattr(litdata, "MAX_BYTES", 10)
    with pytest.raises(ConfigError, match="cut the rows with --shards"):
        export(tmp_path / "b", 1000)


@pytest.mark.parametrize("num_learned", [0, 2, 3])
def test_loss_masks_are_refused_unless_all_shall_be_learned(
    tmp_path: Path, num_learned: int
) -> None:
    rows = [learned_row(0, 4), learned_row(1, 0), learned_row(2, 4, num_learned), learned_row(3, 2)]
    tokens = write_token_folder(tmp_path / "tokens", [[learned_row(9, 3)], rows])
    refused = ExportShards(input_dir=tokens, format=LitDataFormat())
    message = r"loss: which tokens are learned \(first in .*00001.*'k2'\)\n--drop loss writes"
    with pytest.raises(ConfigError, match=message):
        run_stage(refused, tmp_path / "out", workers=0)
    allowed = ExportShards(input_dir=tokens, format=LitDataFormat(), drop=("loss",))
    assert run_stage(allowed, tmp_path / "all", workers=0).complete


@pytest.fixture
def reader(tmp_path: Path) -> LitDataReader:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(n + 1)) for n in range(3)]
    tokens = write_token_folder(tmp_path / "tokens", [rows])
    stage = lossy_export(input_dir=tokens, format=LitDataFormat())
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
