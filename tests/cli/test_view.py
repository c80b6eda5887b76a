"""`shardmill view`: an address on one line, a page behind it, and an end in good order."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "stage.json").write_text('{"stage": {}, "version": 1, "digest": "0"}')
    (tmp_path / "stage" / "units.jsonl").write_text("")
    return tmp_path


def test_the_page_is_served_until_a_signal(folder: Path) -> None:
    words = ["view", str(folder), "--json", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "shardmill", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    try:
        with urllib.request.urlopen(told["address"], timeout=60) as answer:
            assert b"shardmill" in answer.read()
        bare = told["address"].partition("?")[0]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(bare, timeout=60)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert told["address"].startswith("http://127.0.0.1:")


def test_a_file_that_is_no_plan_is_a_message(folder: Path) -> None:
    words = ["view", str(folder / "stage" / "units.jsonl"), "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "shardmill", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "is no plan and no table of lengths" in done.stderr


def test_a_folder_that_is_not_there_is_a_message(tmp_path: Path) -> None:
    words = ["view", str(tmp_path / "nothing")]
    done = subprocess.run(
        [sys.executable, "-m", "shardmill", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "does not exist" in done.stderr and "Traceback" not in done.stderr
