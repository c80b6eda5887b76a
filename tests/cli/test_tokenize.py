"""`shardmill tokenize` takes a recipe, flags win over it, and mistakes are one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardmill.cli.verbs import tokenize
from shardmill.errors import ConfigError
from shardmill.shards.ledger import open_manifest


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "web.jsonl"
    path.write_text("".join(json.dumps({"text": "word " * n}) + "\n" for n in range(9)))
    return path


def run(*arguments: object) -> dict[str, object]:
    flags = ["--workers", "0", "--json"]
    result = CliRunner().invoke(
        tokenize, [str(a) for a in arguments] + flags, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    plain: dict[str, object] = json.loads(result.output)
    return plain


def test_flags_win_over_the_recipe(tmp_path: Path, table: Path) -> None:
    recipe = tmp_path / "tokens.toml"
    recipe.write_text('block_size = 4\nlimit = 3\ntemplate = "text"\n')
    report = run(table, tmp_path / "out", "--recipe", recipe, "--limit", 5)
    assert report["complete"] is True
    stage = open_manifest(tmp_path / "out").stage
    assert isinstance(stage, dict)
    assert (stage["block_size"], stage["limit"]) == (4, 5)


def test_several_tables_are_one_folder_and_a_second_run_has_nothing_to_do(
    tmp_path: Path, table: Path
) -> None:
    other = tmp_path / "more.jsonl"
    other.write_bytes(table.read_bytes())
    assert run(table, other, tmp_path / "out")["num_kept"] == 18
    assert run(table, other, tmp_path / "out")["run"]["num_done"] == 0


def test_a_template_that_needs_samples_says_so(tmp_path: Path, table: Path) -> None:
    with pytest.raises(ConfigError, match="ingest it first"):
        run(table, tmp_path / "out", "--template", "chat")
