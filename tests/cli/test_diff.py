"""`diff` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardmill.cli.main import cli

DATA = Path(__file__).parents[2] / "demo" / "data"


def run(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def place(tmp_path: Path) -> Path:
    flags = ("--shape", "text", "--per-shard", 2, "--workers", 0)
    run("ingest", DATA / "texts.jsonl", tmp_path / "shards", *flags)
    run("tokenize", tmp_path / "shards", tmp_path / "tokens", "--workers", 0)
    (tmp_path / "keys.txt").write_text("texts-00000001\nnobody\n")
    return tmp_path


def test_diff_tells_what_changed(place: Path) -> None:
    keys = ("--keys", place / "keys.txt", "--workers", 0)
    run("remove", place / "tokens", place / "less", *keys)
    done = run("diff", place / "tokens", place / "less")
    assert "removed  1: texts-00000001" in done.output
    assert "1 shard touched" in done.output
    assert "000000  2 -> 1 samples, -1" in done.output
    found = json.loads(run("diff", place / "tokens", place / "less", "--json").output)
    assert found["removed"] == 1
    assert found["num_tokens"][0] > found["num_tokens"][1]
    assert "hold the same samples" in run("diff", place / "less", place / "less").output
