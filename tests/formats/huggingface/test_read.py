"""Tables of tokens and of Liquid's rows as records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mixed_folder import Mixed

from shardmill.errors import FormatError
from shardmill.formats.huggingface.read import LiquidReader, TokenTableReader
from shardmill.model.codec import build
from shardmill.plugins import FORMATS
from shardmill.run.runner import run_stage
from shardmill.stages.export import Export


def export(source: Path, out: Path, codes_dir: Path | None = None, **plain: Any) -> Path:
    stage = Export(input_dir=source, format=build(FORMATS, plain), codes_dir=codes_dir)
    assert run_stage(stage, out, workers=0).complete
    return out


@pytest.mark.parametrize("files", ["arrow", "parquet"])
def test_labels_tell_what_is_learned(mixed: Mixed, tmp_path: Path, files: str) -> None:
    columns = ("input_ids", "labels", "modality")
    out = export(mixed.tokens, tmp_path / "o", kind="hf", files=files, columns=list(columns))
    reader = TokenTableReader(dir=str(out), files=files, columns=columns)
    assert reader.holds() == {"tokens", "loss", "modality"}
    found = [record for part in reader.parts() for record in reader.read(part.input)]
    for row, record in zip(mixed.rows, found, strict=True):
        assert record.ids().tolist() == row.ids.tolist()
        assert record.rows[0].loss.tolist() == row.loss.tolist()
        kinds = [(s.kind, s.position, s.num_tokens) for s in record.rows[0].media]
        assert kinds == [(s.kind, s.position, s.num_tokens) for s in row.media]


def test_a_table_that_was_cut_off_is_named(mixed: Mixed, tmp_path: Path) -> None:
    out = export(mixed.tokens, tmp_path / "o", kind="hf", columns=["input_ids"])
    path = out / "shards" / "00000.arrow"
    path.write_bytes(path.read_bytes()[:-100])
    reader = TokenTableReader(dir=str(out), files="arrow", columns=("input_ids",))
    with pytest.raises(FormatError, match=r"00000\.arrow: cannot be read"):
        list(reader.parts())


def test_rows_of_liquid_have_codes_or_none(mixed: Mixed, tmp_path: Path) -> None:
    out = export(mixed.pairs, tmp_path / "o", mixed.codes, kind="liquid", files="jsonl")
    reader = LiquidReader(dir=str(out), files="jsonl")
    found = [record for part in reader.parts() for record in reader.read(part.input)]
    assert [len(record.codes) for record in found] == [0, 1, 0, 1]
