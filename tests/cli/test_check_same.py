"""`check --same A B`: two places, one answer, an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from unidisc_folder import write_interleaved

from shardmill.cli.main import cli


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_interleaved(tmp_path / "unidisc" / "train_0", [0, 1, 2])
    done = run("tokenize", tmp_path / "unidisc", tmp_path / "tokens", "--workers", 0)
    assert done.exit_code == 0, done.output
    return tmp_path


def test_foreign_tokens_are_the_same_as_what_they_became(place: Path) -> None:
    done = run("check", "--same", place / "unidisc", place / "tokens")
    assert done.exit_code == 0
    assert "hold the same" in done.output
    assert "compared      keys, tokens, modality, codes" in done.output
    assert f"documents, loss, spans, origin: only {place / 'tokens'} has" in done.output
    found = json.loads(run("check", "--same", place / "unidisc", place / "tokens", "--json").output)
    assert found["compared"] == ["keys", "tokens", "modality", "codes"]
    assert found["not_compared"]["loss"] == "only the second has a place for it"


def test_the_first_difference_is_told_and_the_exit_code_is_1(place: Path) -> None:
    write_interleaved(place / "other" / "train_0", [0, 1, 3])
    done = run("check", "--same", place / "other", place / "tokens")
    assert done.exit_code == 1
    assert "first at  record 2 (train-00000003)" in done.output
    assert "'train-00000003' and 'train-00000002'" in done.output
    words = ("check", "--same", place / "other", place / "tokens", "--ignore", "keys")
    assert "token 1 is 1003 and 1002" in run(*words).output
    found = json.loads(run(*words, "--json").output)
    assert found["not_compared"]["keys"] == "ignored, as you said"
    assert not found["same"]
    assert found["difference"]["number"] == 2


def test_what_cannot_be_compared_is_said(place: Path) -> None:
    from shardmill.errors import ConfigError

    (place / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"cannot tell what .*empty holds"):
        run("check", "--same", place / "empty", place / "tokens")
