"""The batch script of a SLURM array: one `shardmill work JOB` a task.

The task replaces the shell, so that the signals of the scheduler reach it: SIGUSR1 some time before
the end (`--signal=B:USR1@SECONDS`), after which it takes no more units; SIGTERM when it must go.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardmill.errors import ConfigError
from shardmill.storage.path import UrlPath

DURATION = re.compile(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+(:\d\d){0,2}")
GPUS = re.compile(r"(\w+:)?\d+")
MEMORY = re.compile(r"\d+[KMGT]?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskShape:
    """What each task of an array gets, in words of sbatch; None leaves it to the cluster.

    `options` are further lines ("--account=vision", "--constraint=a100"), `setup` are shell lines
    that run before the work ("module load cuda"), `program` is how shardmill starts there.
    """

    partition: str | None = None
    time: str | None = None
    gpus: int | str = 0
    cpus: int = 1
    memory: str | None = None
    warn_s: int = 120
    requeue: bool = True
    options: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    program: str = ""

    def __post_init__(self) -> None:
        if self.cpus < 1 or self.warn_s < 0:
            raise ConfigError(
                f"cpus must be 1 or more, warn_s 0 or more, got {self.cpus} and {self.warn_s}"
            )
        if not GPUS.fullmatch(str(self.gpus)):
            raise ConfigError(f"gpus must be a number, or look like 'a100:4', got {self.gpus!r}")
        if self.time is not None and not DURATION.fullmatch(self.time):
            raise ConfigError(f"time must look like 4:00:00 or 2-12:00:00, got {self.time!r}")
        if self.memory is not None and not MEMORY.fullmatch(self.memory):
            raise ConfigError(f"memory must look like 16G, got {self.memory!r}")
        for line in (*self.options, *self.setup):
            if "\n" in line:
                raise ConfigError(f"a line of options or setup holds a line break: {line!r}")
        for line in self.options:
            if not line.startswith("-"):
                raise ConfigError(f"options are lines such as '--account=me', got {line!r}")

    @property
    def num_gpus(self) -> int:
        """The number of GPUs of a task; a type may stand before it: 'a100:4'."""
        return int(str(self.gpus).rpartition(":")[2])

    @property
    def num_workers(self) -> int:
        """Worker processes of a task: one a GPU, or one a processor."""
        return self.num_gpus or self.cpus


def write_script(
    shape: TaskShape, array: str, job_path: Path, *, name: str, workers: int, cwd: Path
) -> str:
    """Return the script of an array, whose tasks are numbered as in '0-100%25'."""
    # SLURM writes what tasks print into files: beside the job, or here if that is in a store.
    log_dir = cwd if isinstance(job_path, UrlPath) else job_path.parent
    wanted = [
        ("job-name", name),
        ("array", array),
        ("partition", shape.partition),
        ("time", shape.time),
        ("gpus", shape.gpus or None),
        ("nodes", 1),
        ("ntasks", 1),
        ("cpus-per-task", shape.cpus),
        ("mem", shape.memory),
        ("signal", f"B:USR1@{shape.warn_s}" if shape.warn_s else None),
        ("chdir", cwd),
        ("output", log_dir / f"{job_path.stem}-%A_%a.log"),
        ("open-mode", "append"),
    ]
    lines = [f"#SBATCH --{key}={value}" for key, value in wanted if value is not None]
    lines.append("#SBATCH --requeue" if shape.requeue else "#SBATCH --no-requeue")
    lines += [f"#SBATCH {line}" for line in shape.options]
    lines += ["", *shape.setup, _command(shape, job_path, workers)]
    return "#!/bin/bash\n" + "\n".join(lines) + "\n"


def arrays(num_tasks: int, at_once: int | None, max_array_size: int) -> list[str]:
    """Return the arrays that make up so many tasks: ['0-100%25'], or several if one is too large.

    Each gets its share of the tasks that may run at once.
    """
    # MaxArraySize is one more than the largest task number.
    sizes = _split(num_tasks, max(1, max_array_size))
    if at_once is None:
        return [f"0-{size - 1}" for size in sizes]
    return [f"0-{size - 1}%{max(1, round(at_once * size / num_tasks))}" for size in sizes]


def _split(total: int, most: int) -> Sequence[int]:
    num_pieces = -(-total // most)
    return [total * (i + 1) // num_pieces - total * i // num_pieces for i in range(num_pieces)]


def _command(shape: TaskShape, job_path: Path, workers: int) -> str:
    program = shape.program or f"{shlex.quote(sys.executable)} -m shardmill"
    requeue = " --requeue" if shape.requeue else ""
    return f"exec {program} work {shlex.quote(str(job_path))} --workers {workers}{requeue}"
