"""Batch scripts: what was asked for, word by word; mistakes found before they are submitted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.running.slurm import TaskShape, arrays, write_script


def script(shape: TaskShape, **options: object) -> list[str]:
    given_options = {"name": "mill", "workers": 4, "cwd": Path("/home/me")} | options
    return write_script(shape, "0-9%3", Path("/out/jobs/abc.json"), **given_options).splitlines()  # type: ignore[arg-type]


def test_everything_that_was_asked_for_is_in_it() -> None:
    shape = TaskShape(
        partition="preempt",
        time="4:00:00",
        gpus="a100:2",
        cpus=8,
        memory="64G",
        warn_s=600,
        options=("--account=vision", "--constraint=nvme"),
        setup=("module load cuda",),
        program="srun shardmill",
    )
    assert script(shape) == [
        "#!/bin/bash",
        "#SBATCH --job-name=mill",
        "#SBATCH --array=0-9%3",
        "#SBATCH --partition=preempt",
        "#SBATCH --time=4:00:00",
        "#SBATCH --gpus=a100:2",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --mem=64G",
        "#SBATCH --signal=B:USR1@600",
        "#SBATCH --chdir=/home/me",
        "#SBATCH --output=/out/jobs/abc-%A_%a.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --account=vision",
        "#SBATCH --constraint=nvme",
        "",
        "module load cuda",
        "exec srun shardmill work /out/jobs/abc.json --workers 4 --requeue slurm",
    ]


def test_what_was_not_asked_for_is_left_to_the_cluster() -> None:
    lines = "\n".join(script(TaskShape(requeue=False, warn_s=0)))
    for word in ("--partition", "--time", "--gpus", "--mem", "--signal", "work /x --requeue"):
        assert word not in lines
    assert "#SBATCH --no-requeue" in lines


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cpus": 0}, "cpus"),
        ({"gpus": "many"}, "gpus must be a number"),
        ({"gpus": -1}, "gpus must be a number"),
        ({"time": "tomorrow"}, "4:00:00"),
        ({"memory": "lots"}, "16G"),
        ({"warn_s": -1}, "warn_s"),
        ({"options": ("account=me",)}, "--account=me"),
        ({"options": ("--a\nrm -rf x",)}, "line break"),
        ({"setup": ("a\nb",)}, "line break"),
    ],
)
def test_mistakes_are_found_before_they_are_submitted(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TaskShape(**fields)  # type: ignore[arg-type]


def test_one_worker_a_gpu_or_a_processor() -> None:
    assert TaskShape(cpus=6).num_workers == 6
    assert TaskShape(cpus=6, gpus=2).num_workers == 2
    assert TaskShape(cpus=6, gpus="h200:8").num_workers == 8


@given(
    num_tasks=st.integers(1, 5000),
    at_once=st.none() | st.integers(1, 6000),
    most=st.integers(1, 1500),
)
def test_arrays_make_up_all_tasks_within_the_limit(
    num_tasks: int, at_once: int | None, most: int
) -> None:
    total = throttled = 0
    for array in arrays(num_tasks, at_once, most):
        numbers, _, throttle = array.partition("%")
        last = int(numbers.removeprefix("0-"))
        assert last < most, "MaxArraySize is one more than the largest number"
        total += last + 1
        throttled += int(throttle or 0)
    assert total == num_tasks
    if at_once is not None:
        assert abs(throttled - at_once) <= len(arrays(num_tasks, at_once, most))


def test_the_array_of_the_manual() -> None:
    assert arrays(101, 25, 1001) == ["0-100%25"]
    assert arrays(2500, 25, 1001) == ["0-832%8", "0-832%8", "0-833%8"]
