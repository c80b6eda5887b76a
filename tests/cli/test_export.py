"""`shardmill export`: one command, one format, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from invoked import invoke, invoke_json
from token_folder import write_token_folder

from shardmill.cli.main import cli
from shardmill.errors import ConfigError
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.tokens.ids import open_megatron_index


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    rows = [
        TokenRow(key=f"k{n}", ids=np.arange(1 + n % 7), loss=np.array([[0, 1 + n % 7]]))
        for n in range(40)
    ]
    return write_token_folder(tmp_path / "tokens", [rows])


def test_command_exports_once(tokens: Path, tmp_path: Path) -> None:
    words = ("export", tokens, tmp_path / "out", "--format", "megatron,prefix=all", "--shards", 4)
    first = invoke_json(*words, "--workers", 0)
    assert first["left_out"] == ["keys"]
    assert first["complete"] and first["run"]["num_done"] == 4 and first["num_kept"] == 40
    assert len(open_megatron_index(tmp_path / "out" / "all.idx").lengths) == 40
    assert invoke_json(*words)["run"]["num_done"] == 0


@pytest.mark.parametrize(
    ("format_text", "message"),
    [
        ("megatrn", "unknown kind 'megatrn'; did you mean 'megatron'"),
        ("megatron,prefx=x", "format megatron has no field 'prefx'; did you mean 'prefix'"),
        ("megatron,dtype=int8", "dtype must be one of smallest, uint16, int32"),
        ("tensordict", "format tensordict needs length"),
        ("liquid", "holds no samples .*give the folder that ingest or filter made"),
        ("liquid-pairs", "holds no samples"),
        ("megatron --drop los", "nothing is named 'los': drop some of keys, "),
        ("hf --drop loss", "HuggingFaceFormat has a place for loss"),
    ],
)
def test_mistakes_are_named(tokens: Path, tmp_path: Path, format_text: str, message: str) -> None:
    words = ["export", str(tokens), str(tmp_path / "out"), "--format", *format_text.split()]
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(cli, [*words, "--workers", "0"], catch_exceptions=False)


def test_what_is_dropped_is_said(tmp_path: Path) -> None:
    rows = [TokenRow(key="k", ids=np.arange(4), loss=np.array([[1, 2]]))]
    words = ("export", write_token_folder(tmp_path / "t", [rows]), tmp_path / "out")
    words += ("--format", "litdata", "--workers", 0)
    with pytest.raises(ConfigError, match="--drop loss writes it without"):
        invoke(*words)
    assert "left out  keys, loss" in invoke(*words, "--drop", "packs,loss").output.replace(
        "packs, ", ""
    )
