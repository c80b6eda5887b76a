"""Commands as a user runs them, in an empty folder with the demo's data in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "demo" / "data"
Shardmill = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shardmill(tmp_path: Path) -> Shardmill:
    """Run `shardmill WORDS...` in the folder; `data` in it is the demo's."""
    (tmp_path / "data").symlink_to(DATA)

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "shardmill.cli", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run
