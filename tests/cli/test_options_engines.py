"""`--on`: what it understands, and what it says of mistakes; `--dry-run` writes nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.cli.options import parse_engine
from shardmill.errors import ConfigError
from shardmill.run.local import Local
from shardmill.run.ray import Ray
from shardmill.run.slurm import Slurm, TaskShape

Shardmill = Callable[..., subprocess.CompletedProcess[str]]
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


def test_what_on_understands(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    shape = TaskShape(
        partition="preempt",
        time="4:00:00",
        gpus=1,
        cpus=4,
        memory="16G",
        warn_s=600,
        options=("--account=vision",),
    )
    expected = Slurm(tasks=101, at_once=25, task=shape)
    assert parse_engine(str(tmp_path / "cluster.toml")) == expected
    assert parse_engine("local") == Local()
    assert parse_engine("ray") == Ray()
    assert parse_engine("ray,gpus=0.5,cpus=2") == Ray(gpus=0.5, cpus=2)
    assert parse_engine("ray://head:10001") == Ray(address="ray://head:10001")
    assert parse_engine("ray://head:10001,gpus=1") == Ray(address="ray://head:10001", gpus=1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kubernetes", "use one of local, ray, slurm"),
        ("gone.toml", "No such file"),
        ("ray,gpus=many", "gpus must be float"),
        ("ray,gpu=1", "has no field 'gpu': use address, cpus, gpus"),
        ("ray,cpus=0", "needs CPUs or GPUs"),
    ],
)
def test_mistakes_are_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_engine(text)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("kind = slurm", "Invalid value"),
        ("tasks = 3", "needs a kind: one of local, ray, slurm"),
        ('kind = "slurm"\ntask = 3', "task must be dict"),
        ('kind = "slurm"\ntasks = 0', "must be positive"),
        ('kind = "slurm"\n[task]\ncores = 3', "has no field 'cores'"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(content.replace("\\\n", "\n"))
    with pytest.raises(ConfigError, match=says):
        parse_engine(str(path))


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
