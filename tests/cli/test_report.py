"""Runs as a user sees them end: budgets, a step that keeps nothing, and what would be submitted."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from drivers import snapshot
from make_media import image

Shardmill = Callable[..., subprocess.CompletedProcess[str]]

INGEST = ("ingest", "rows.jsonl", "out", "--per-shard", "1", "--workers", "1")


@pytest.fixture
def rows(tmp_path: Path) -> list[str]:
    """Five rows whose images are missing."""
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


def test_repairing_and_trying_again_completes(
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
    flags = ("--filter", "image_size,min_side=100000", "--workers", "1")
    done = shardmill("filter", "photos", "none", *flags)
    assert "warning: nothing was kept of" in done.stderr and "complete" in done.stdout


def make_tars(folder: Path, photo: Path, *, cut: bool) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(3):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            tar.add(photo.resolve(), f"{number}.jpg")
    if cut:
        content = (folder / "1.tar").read_bytes()
        (folder / "1.tar").write_bytes(content[: len(content) // 2])


def test_a_repaired_tar_costs_only_its_own_unit(shardmill: Shardmill, tmp_path: Path) -> None:
    photo, words = tmp_path / "data" / "photos" / "cat.jpg", ("--workers", "1")
    make_tars(tmp_path / "raw", photo, cut=True)
    shardmill("ingest", "raw/*.tar", "out", *words, code=1)
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/shards").iterdir()}
    with tarfile.open(tmp_path / "raw" / "1.tar", "w") as tar:
        tar.add(photo.resolve(), "1.jpg")
    done = shardmill("ingest", "raw/*.tar", "out", *words, "--json")
    assert "inputs changed: 2 of 3 units are done and stay" in done.stderr
    assert json.loads(done.stdout)["done_now"] == 1
    shards = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/shards").iterdir()}
    assert len(shards) == 6 and times.items() <= shards.items()
    shardmill("check", "out")
    shardmill("ingest", "raw/*.tar", "calm", *words)
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "calm")


def test_a_finished_folder_is_not_repaired_from_other_inputs(
    shardmill: Shardmill, tmp_path: Path
) -> None:
    make_tars(tmp_path / "raw", tmp_path / "data" / "photos" / "cat.jpg", cut=False)
    shardmill("ingest", "raw/*.tar", "out", "--workers", "1")
    (tmp_path / "raw" / "1.tar").touch()
    (tmp_path / "out" / "shards" / "000001.tar").write_bytes(b"damaged")
    before = snapshot(tmp_path / "out")
    for words in (("ingest", "raw/*.tar", "out"), ("check", "out", "--repair")):
        assert "begun with other inputs" in shardmill(*words, "--workers", "1", code=2).stderr
    assert snapshot(tmp_path / "out") == before


CLUSTER = """
kind = "slurm"
tasks = 101
at_once = 25

[task]
partition = "preempt"
time = "4:00:00"
gpus = 1
cpus = 4
memory = "16G"
warn_s = 600
options = ["--account=vision"]
"""


def test_a_dry_run_prints_the_script_and_writes_nothing(
    tmp_path: Path, shardmill: Shardmill
) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    words = ("ingest", "data/pairs.jsonl", "out", "--on", "cluster.toml", "--dry-run")
    script = shardmill(*words).stdout
    for line in (
        "#SBATCH --array=0-100%25",
        "#SBATCH --partition=preempt",
        "#SBATCH --gpus=1",
        "#SBATCH --signal=B:USR1@600",
        "#SBATCH --requeue",
        "#SBATCH --account=vision",
    ):
        assert f"{line}\n" in script
    assert "/out/jobs/" in script.splitlines()[-1] and not (tmp_path / "out").exists()
    assert shardmill(*words).stdout == script, "the same command gives the same script"


@pytest.mark.parametrize("flag", ["--dry-run", "--no-wait"])
def test_flags_for_schedulers_need_one(shardmill: Shardmill, flag: str) -> None:
    done = shardmill("ingest", "data/pairs.jsonl", "out", flag, code=2)
    assert 'kind = "slurm"' in done.stderr


def test_a_report_says_what_to_type_for_rows_that_were_refused(
    shardmill: Shardmill, tmp_path: Path
) -> None:
    photo = image("PNG", 20, 20)
    for folder in ("in", "my photos"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(photo)
    names = ["a.png", str(tmp_path / "my photos" / "a.png")]
    lines = [json.dumps({"image": name, "caption": name}) for name in names]
    (tmp_path / "in" / "rows.jsonl").write_text("\n".join(lines))
    words = ("ingest", "in/rows.jsonl", "--workers", "0", "--max-skip-rate", "1")
    flag = f"--allow '{tmp_path}/my photos'"
    said = shardmill(*words[:2], "out", *words[2:]).stdout
    assert "1 x path not allowed" in said
    assert f"run it into another folder with {flag}" in said
    allowed = shardmill(*words[:2], "out-2", *words[2:], *shlex.split(flag)).stdout
    assert "not allowed" not in allowed
    assert "2 in 1 shard" in allowed
