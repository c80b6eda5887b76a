"""`shardmill plan`: a plan file and a report, from lengths or from token shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from packing_lengths import draw
from token_folder import write_token_folder

from shardmill.cli.main import cli
from shardmill.errors import ConfigError, FormatError
from shardmill.model.plan import length_table
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.plans import open_plan, write_lengths
from shardmill.shards.tokens.shard import token_lengths


def run(*words: object) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    tokens, visual = draw("vlm", 12_600, 5000)
    table = length_table(
        tokens,
        num_visual=visual,
        num_fixed=visual,
        source=visual > 0,
        source_names=["text", "media"],
    )
    write_lengths(tmp_path / "lengths.bin", table)
    return tmp_path / "lengths.bin"


def test_report_names_what_a_training_lead_asks(lengths: Path, tmp_path: Path) -> None:
    done = run("plan", lengths, tmp_path / "p", "--capacity", 8192, "--overlong", "cut")
    assert done.exit_code == 0
    for words in ("fill", "lower bound", "Ranks that wait", "modelled step", "quarters", "Sources"):
        assert words in done.output
    assert "media longer than a pack" in done.output
    assert open_plan(tmp_path / "p").spec.capacity == 8192


def test_json_is_one_object_with_the_figures(lengths: Path, tmp_path: Path) -> None:
    done = run(
        "plan", lengths.parent, tmp_path / "p", "--capacity", 16384, "--json",
        "--model", "layers=2,hidden=64,vision_layers=0",
    )  # fmt: skip
    figures = json.loads(done.output)
    assert figures["num_packed"] == 5000
    assert figures["num_packs"] == len(open_plan(tmp_path / "p"))
    assert {source["name"] for source in figures["sources"]} == {"text", "media"}


def test_plan_of_token_shards_belongs_to_them(tmp_path: Path) -> None:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(1 + n % 7)) for n in range(40)]
    folder = write_token_folder(tmp_path / "tokens", [rows[:25], rows[25:]])
    done = run("plan", folder, tmp_path / "p", "--capacity", 16)
    assert "shardmill pack" in done.output
    open_plan(tmp_path / "p").check_table(token_lengths(folder))


def test_overlong_samples_fail_by_default(lengths: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="samples are longer than the 8192 tokens"):
        run("plan", lengths, tmp_path / "p", "--capacity", 8192)
    assert not (tmp_path / "p").exists()


def test_a_file_that_is_there_is_never_written_over(lengths: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch")
    with pytest.raises(ConfigError, match="is no plan"):
        run("plan", lengths, script, "--capacity", 16384)
    assert script.read_text() == "import torch"
    run("plan", lengths, tmp_path / "p", "--capacity", 16384)
    written = (tmp_path / "p").read_bytes()
    with pytest.raises(ConfigError, match="capacity: 16384 -> 32768"):
        run("plan", lengths, tmp_path / "p", "--capacity", 32768)
    write_lengths(lengths, length_table(np.array([5, 6])))
    with pytest.raises(ConfigError, match="the lengths are others"):
        run("plan", lengths, tmp_path / "p", "--capacity", 16384)
    assert (tmp_path / "p").read_bytes() == written


def test_a_folder_without_tokens_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = write_token_folder(tmp_path / "tokens", [[TokenRow(key="k", ids=np.arange(3))]])
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"bin"', '"tar"'))
    with pytest.raises(FormatError, match="tokenize it first"):
        run("plan", folder, tmp_path / "p", "--capacity", 16)
