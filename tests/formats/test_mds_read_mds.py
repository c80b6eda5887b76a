"""MDS shards that are not what their index says are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from token_folder import SPACE, write_token_folder

from shardmill.errors import FormatError
from shardmill.formats.mds import MdsFormat, MdsReader
from shardmill.model.tokenrow import TokenRow
from shardmill.run.runner import run_stage
from shardmill.stages.export import Export


@pytest.fixture
def reader(tmp_path: Path) -> MdsReader:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(n + 1)) for n in range(3)]
    tokens = write_token_folder(tmp_path / "tokens", [rows])
    run_stage(Export(input_dir=tokens, format=MdsFormat()), tmp_path / "out", workers=0)
    return MdsReader(dir=str(tmp_path / "out"), space=SPACE)


def test_a_shard_that_was_cut_off_is_named(reader: MdsReader) -> None:
    path = Path(reader.dir) / "shards" / "00000.mds"
    raw = path.read_bytes()
    (part,) = reader.parts()
    for length, message in ((len(raw) - 1, "cut off"), (10, "does not hold the 3 samples")):
        path.write_bytes(raw[:length])
        with pytest.raises(FormatError, match=message):
            list(reader.read(part.input))


def test_a_sample_whose_columns_do_not_fit_has_a_problem(reader: MdsReader) -> None:
    path = Path(reader.dir) / "shards" / "00000.mds"
    raw = bytearray(path.read_bytes())
    start = int.from_bytes(raw[4:8], "little")
    raw[start] += 1
    path.write_bytes(raw)
    (part,) = reader.parts()
    first, *others = reader.read(part.input)
    assert first.problem is not None
    assert [record.problem for record in others] == [None, None]


def test_another_version_is_refused(reader: MdsReader) -> None:
    (Path(reader.dir) / "index.json").write_text(json.dumps({"version": 3, "shards": []}))
    with pytest.raises(FormatError, match="version 2"):
        list(reader.parts())
