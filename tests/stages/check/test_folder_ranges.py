"""check reads the ranges of shared files, and repair has them written again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drivers import snapshot
from token_folder import write_token_folder

from shardmill.formats.megatron import MegatronFormat
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.stages.check.folder import check_folder, repair
from shardmill.stages.export import ExportShards


@pytest.fixture
def stage(tmp_path: Path) -> ExportShards:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(1 + n % 19)) for n in range(40)]
    tokens = write_token_folder(tmp_path / "tokens", [rows[:20], rows[20:]])
    return ExportShards(input_dir=tokens, format=MegatronFormat(prefix="train"))


def test_a_flipped_byte_is_found_and_repaired(stage: ExportShards, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_stage(stage, out, workers=0).complete
    whole = snapshot(out)
    assert check_folder(out).sound
    content = bytearray((out / "train.bin").read_bytes())
    content[-1] ^= 1
    (out / "train.bin").write_bytes(content)
    verdict = check_folder(out)
    assert [(p.unit, p.path) for p in verdict.problems] == [("00001", "train.bin")]
    assert repair(verdict) == ("00001",)
    assert run_stage(stage, out, workers=0).num_done == 1
    assert snapshot(out) == whole


def test_a_missing_file_is_found_and_repaired(stage: ExportShards, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_stage(stage, out, workers=0).complete
    whole = snapshot(out)
    (out / "train.idx").unlink()
    verdict = check_folder(out)
    assert {p.what.partition(":")[0] for p in verdict.problems} == {"cannot be read"}
    repair(verdict)
    assert run_stage(stage, out, workers=0).complete
    assert snapshot(out) == whole
