"""`remove` as a person runs it."""

from __future__ import annotations

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


def test_remove_tells_what_went_and_what_else_to_do(place: Path) -> None:
    keys = ("--keys", place / "keys.txt", "--workers", 0)
    done = run("remove", place / "shards", place / "less", *keys)
    assert "1 x removed on request" in done.output
    assert "1 shard written again" in done.output
    assert "1 key: nobody" in done.output
    assert "tokens was made from" in done.output
    again = run("remove", place / "tokens", place / "less-tokens", *keys)
    assert "was made from" not in again.output
    assert "nothing to do" in run("remove", place / "shards", place / "less", *keys).output
