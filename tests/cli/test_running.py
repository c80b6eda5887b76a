"""Runs as a user sees them end: a budget for the whole folder, and a step that keeps nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Shardmill = Callable[..., subprocess.CompletedProcess[str]]

INGEST = ("ingest", "rows.jsonl", "out", "--per-shard", "1", "--workers", "1")


@pytest.fixture
def rows(tmp_path: Path) -> list[str]:
    """Five rows whose pictures are missing."""
    names = [f"{number}.jpg" for number in range(5)]
    lines = [json.dumps({"image": name, "caption": name}) for name in names]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return names


@pytest.mark.parametrize("per_shard", ["1", "2", "1000"])
def test_small_units_cannot_lose_everything(
    shardmill: Shardmill, tmp_path: Path, rows: list[str], per_shard: str
) -> None:
    words = (*INGEST[:4], per_shard, *INGEST[5:])
    refused = shardmill(*words, code=2 if per_shard == "1" else 1)
    assert "missing file" in refused.stderr + refused.stdout
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_mending_and_trying_again_completes(
    shardmill: Shardmill, tmp_path: Path, rows: list[str]
) -> None:
    refused = shardmill(*INGEST, code=2).stderr
    assert "of its 5 samples 5 are broken" in refused and "5 x missing file" in refused
    assert "--retry-rejects" in refused and "--max-skip-rate" in refused
    waiting = shardmill("filter", "out", "next", "--filter", "media", code=2).stderr
    assert "all 5 units are done" in waiting
    for name in rows:
        shutil.copy(tmp_path / "data" / "photos" / "cat.jpg", tmp_path / name)
    report = json.loads(shardmill(*INGEST, "--retry-rejects", "missing", "--json").stdout)
    assert report["complete"] and report["total"]["samples_kept"] == 5


def test_a_higher_limit_completes_and_says_that_nothing_is_left(
    shardmill: Shardmill, rows: list[str]
) -> None:
    shardmill(*INGEST, code=2)
    done = shardmill(*INGEST, "--max-skip-rate", "1", "--json")
    assert json.loads(done.stdout)["done_now"] == 0
    assert "warning: nothing was kept of 5 samples: 5 x missing file" in done.stderr


def test_a_filter_that_keeps_nothing_says_so(shardmill: Shardmill) -> None:
    shardmill("ingest", "data/photos", "photos", "--workers", "1")
    flags = ("--filter", "picture_size,min_side=100000", "--workers", "1")
    done = shardmill("filter", "photos", "none", *flags)
    assert "warning: nothing was kept of" in done.stderr and "complete" in done.stdout
