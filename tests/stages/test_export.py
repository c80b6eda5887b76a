"""The stage behind every format: units, counts, staleness, and a format of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from coded_folder import make_pair, store_coded
from drivers import snapshot
from lossy_export import lossy_export
from token_folder import write_token_folder

from shardmill.errors import ConfigError, ShardmillError, StaleError
from shardmill.formats.adapters.liquid import LiquidFormat
from shardmill.formats.format import Aspect, Format
from shardmill.formats.huggingface import HuggingFaceFormat
from shardmill.formats.megatron import MegatronFormat
from shardmill.formats.rows import ExportInput, Piece, token_batches
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.stage import Draft, Tally, WholeStage
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths(Format):
    """One line with the number of tokens of each row; nothing else is needed of a format."""

    @property
    def keeps(self) -> frozenset[Aspect]:
        return frozenset({"documents"})

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        with draft.file(piece.name, "txt").open("w") as file:
            for batch in token_batches(source, piece.slices):
                file.writelines(f"{length}\n" for length in batch.lengths.tolist())
        tally.num_in += piece.num_rows
        tally.num_kept += piece.num_rows
        draft.finish(piece.name, num_samples=piece.num_rows)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(1 + n)) for n in range(12)]
    return write_token_folder(tmp_path / "tokens", [rows[:5], rows[5:]])


def test_a_format_needs_only_to_write(tokens: Path, tmp_path: Path) -> None:
    stage = lossy_export(input_dir=tokens, format=Lengths(), num_shards=3)
    assert isinstance(stage, WholeStage)
    assert run_stage(stage, tmp_path / "out", workers=0).complete
    texts = [path.read_text() for path in sorted((tmp_path / "out" / "shards").iterdir())]
    assert "".join(texts).split() == [str(n) for n in range(1, 13)] and len(texts) == 3


def test_the_bytes_do_not_depend_on_workers(tokens: Path, tmp_path: Path) -> None:
    stage = lossy_export(input_dir=tokens, format=MegatronFormat(prefix="x"), num_shards=5)
    for workers in (0, 2):
        assert run_stage(stage, tmp_path / str(workers), workers=workers).complete
    assert snapshot(tmp_path / "0") == snapshot(tmp_path / "2")


def test_the_spec_travels_as_json(tokens: Path) -> None:
    stage = lossy_export(
        input_dir=tokens, format=HuggingFaceFormat(columns=("keys",)), num_shards=2
    )
    assert from_plain(to_plain(stage)) == stage


def test_other_settings_or_inputs_are_refused(tokens: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_stage(
        lossy_export(input_dir=tokens, format=MegatronFormat()), out, workers=0
    ).complete
    with pytest.raises(StaleError, match="dtype"):
        run_stage(
            lossy_export(input_dir=tokens, format=MegatronFormat(dtype="int32")), out, workers=0
        )
    (tokens / "manifest.json").touch()  # as after a repair: the same manifest, written anew
    assert run_stage(
        lossy_export(input_dir=tokens, format=MegatronFormat()), out, workers=0
    ).complete
    manifest = tokens / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"units_digest": "', b'"units_digest": "0'))
    with pytest.raises(StaleError, match=r"changed: .*manifest\.json"):
        run_stage(lossy_export(input_dir=tokens, format=MegatronFormat()), out, workers=0)


def test_codes_are_part_of_the_units(tmp_path: Path) -> None:
    samples, codes = store_coded(tmp_path, [make_pair("a", "x")], per_shard=1)
    (unit,) = lossy_export(input_dir=samples, codes_dir=codes, format=LiquidFormat()).units()
    assert len(str(unit.input["codes"])) == 32
    assert set(unit.input["files"]) == {"shards/000000.tar", "shards/000000.idx"}  # type: ignore[arg-type]


def test_what_is_not_finished_or_not_possible_is_refused(tokens: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_shards must be at least 1"):
        lossy_export(input_dir=tokens, format=Lengths(), num_shards=0)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"holds other things \(thesis\.txt\)"):
        run_stage(lossy_export(input_dir=tokens, format=Lengths()), tmp_path / "other", workers=0)
    (tokens / "manifest.json").unlink()
    with pytest.raises(ShardmillError, match="is not a dataset of shardmill"):
        run_stage(lossy_export(input_dir=tokens, format=Lengths()), tmp_path / "out", workers=0)
