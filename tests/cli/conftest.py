"""Commands as a user runs them, in an empty folder with the demo's data in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from invoked import invoke

DATA = Path(__file__).parents[2] / "demo" / "data"
Shardmill = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shardmill(tmp_path: Path) -> Shardmill:
    """Run `shardmill WORDS...` in the folder; `data` in it is the demo's."""
    (tmp_path / "data").symlink_to(DATA)

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "shardmill", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with texts as `shards`, their `tokens`, and `keys.txt`: one key, and no key."""
    flags = ("--shape", "text", "--per-shard", 2, "--workers", 0)
    invoke("ingest", DATA / "texts.jsonl", tmp_path / "shards", *flags)
    invoke("tokenize", tmp_path / "shards", tmp_path / "tokens", "--workers", 0)
    (tmp_path / "keys.txt").write_text("texts-00000001\nnobody\n")
    return tmp_path
