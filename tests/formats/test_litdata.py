"""LitData's chunks: dtypes, sizes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_folder import write_token_folder

from shardmill.errors import ConfigError
from shardmill.formats import litdata
from shardmill.formats.litdata import LitDataFormat
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.run.runner import run_stage
from shardmill.stages.export import Export


def export(tmp_path: Path, size: int, **fields: Any) -> Path:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(n + 1)) for n in range(5)]
    space = TokenSpace(text_size=size)
    tokens = write_token_folder(tmp_path / "tokens", [rows[:3], [], rows[3:]], space)
    stage = Export(input_dir=tokens, format=LitDataFormat(**fields))
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
