"""`python -m shardmill` is the command, and the version is said in one place."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import shardmill


def test_python_m_shardmill_is_the_command() -> None:
    words = [sys.executable, "-m", "shardmill", "--version"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert printed.split()[-1] == shardmill.__version__


def test_the_package_has_the_version_of_its_code() -> None:
    assert version("shardmill") == shardmill.__version__
