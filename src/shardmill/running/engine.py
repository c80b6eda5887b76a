"""The contract of an engine: what gets the units of a run worked off, here or on a cluster.

An engine is a frozen dataclass that inherits `Engine`; it is named in `plugins.ENGINES`, or by
users as "package.module:Class". When `work` is called, the runner has planned the folder, holds its
lock and knows which units have no receipt; when it returns, the runner collects. In between, every
engine ends in `worker.work_job`, in whatever process or machine: that opens the stage, works units
and commits them. An engine never touches data, and may lose any of its workers at any time.

Only `work` must be written. The other methods are what commands ask an engine for; their defaults
refuse, or say that there is nothing.

A `Job` is all that a process needs to work off units, as JSON; in a message, or as a file for tasks
that start later and elsewhere: `shardmill work OUT/jobs/NAME.json`.

    {"format": 1, "shardmill": "0.1.0", "job": {"stage": ..., "out_dir": ..., ...},
     "stage_digest": "...", "path": [...]}

NAME is a digest of the content, so the same command writes the same file. It holds the spec and
the folders of the modules of the user's own that it names; a credential comes from the environment.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from shardmill import __version__
from shardmill.errors import ConfigError, FormatError, mask
from shardmill.model.codec import Plain, build, code_path, digest, from_plain, to_plain
from shardmill.model.manifest import stage_digest
from shardmill.model.stage import Stage, Unit
from shardmill.plugins import ENGINES
from shardmill.running.events import OnEvent
from shardmill.shards.ledger import Ledger
from shardmill.storage.files import backend_of
from shardmill.storage.path import as_path
from shardmill.storage.text import dump_page, parse_json

FORMAT = 1
NAME_DIGITS = 12  # 48 bits tell the few jobs of one folder apart


@dataclass(frozen=True, slots=True)
class Accepted:
    """The share of broken samples that a complete folder may have, and whether it may be empty."""

    max_skip_rate: float
    allow_empty: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The stage, the folder that it fills, and the settings of a run, which `token` names."""

    stage: Plain
    out_dir: str
    token: str
    retries: int
    max_skip_rate: float
    allow_empty: bool = True

    def load_stage(self) -> Stage:
        """Return the stage; a job is what a driver of ours wrote, so it may name any class."""
        stage: Stage = from_plain(self.stage, where="stage", trusted=True)
        return stage

    def for_run(self, token: str) -> Job:
        """Return the same job for another run, or for a worker with drafts of its own."""
        return replace(self, token=token)

    @property
    def accepts(self) -> Accepted:
        """What may be missing from a folder that is complete."""
        return Accepted(self.max_skip_rate, self.allow_empty)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the output folder, for the run of this job."""
        return Ledger(as_path(self.out_dir), self.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The units of a run that have no receipt, and how to report what happens to them.

    `num_workers` is what the user asked for, or None. `on_event` may be called from any thread;
    `relay` is for events that are in the log of another process already. `should_stop` is to be
    asked before each unit: it is true after a stop signal, a full disk or a lost lock.
    """

    job: Job
    stage: Stage
    units: Sequence[Unit]
    num_workers: int | None
    on_event: OnEvent
    relay: OnEvent
    should_stop: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """What a scheduler says about the tasks that were submitted for a folder.

    `why` is the scheduler's reason for letting tasks wait. Without an answer all counts are 0.
    """

    scheduler: str
    answers: bool = True
    num_running: int = 0
    num_waiting: int = 0
    num_tasks: int = 0
    why: str = ""


class Engine:
    """Works off the units of runs; the base class of all engines."""

    # Whether workers share this machine, so that its GPUs say how many of them make sense.
    is_local: ClassVar[bool] = False
    # Whether it submits tasks that share the units by claims (see `task`). Such tasks outlive the
    # run, so its lock lets them in, and lets it watch tasks that an earlier run submitted.
    has_tasks: ClassVar[bool] = False

    def check(self) -> None:
        """Raise `ConfigError` if it cannot work here; called before anything is written."""

    def work(self, assignment: Assignment) -> None:
        """Return when every unit is done or has failed, or when told to stop."""
        raise NotImplementedError

    def preview(self, job: Job, *, num_workers: int | None) -> str:
        """Return what would be submitted for a job, which is what `--dry-run` prints."""
        raise ConfigError(f"--dry-run prints what is submitted, and {self._submits_nothing()}")

    def without_waiting(self) -> Self:
        """Return the engine that only submits, for `--no-wait`."""
        raise ConfigError(f"--no-wait returns once tasks are queued, and {self._submits_nothing()}")

    def queue_state(self, out_dir: Path) -> QueueState | None:
        """Return what is queued for a folder, for `status`; None if nothing was submitted."""
        return None

    def requeue(self) -> bool:
        """Ask for another turn of the task that this process is; return whether it was granted."""
        return False

    def _submits_nothing(self) -> str:
        name = type(self).__name__
        return f'{name} submits nothing: name a file in --on that says kind = "slurm"'


def find_queue(out_dir: Path, on: Engine | None = None) -> QueueState | None:
    """Return what is queued for a folder, by the given engine or the first of ours that knows.

    A folder names no engine of its own: reading the state of data must not import a module.
    """
    engines = [on] if on else (build(ENGINES, {"kind": name}) for name in ENGINES)
    states = (engine.queue_state(out_dir) for engine in engines)
    return next((state for state in states if state is not None), None)


def jobs_dir(out_dir: Path) -> Path:
    """Return the folder of job files, scripts and what their tasks print."""
    return out_dir / "jobs"


def job_path(job: Job) -> Path:
    """Return where the job is stored."""
    return jobs_dir(as_path(job.out_dir)) / f"{digest(_content(job))[:NAME_DIGITS]}.json"


def write_job(job: Job) -> Path:
    """Store the job in its folder and return where."""
    path = job_path(job)
    backend = backend_of(path.parent)
    backend.make_folder(path.parent)
    backend.put(path, dump_page(_content(job)))
    return path


def read_job(path: Path) -> Job:
    """Return the job of a file, and add its search path for modules to ours.

    Raises `ConfigError` for a job of another format, or one whose stage is another version here.
    """
    content = _read(path)
    if content["format"] != FORMAT:
        raise ConfigError(
            f"{path} is a job of shardmill {content.get('shardmill', '?')} in format "
            f"{content['format']}, and this is shardmill {__version__}, which reads format "
            f"{FORMAT}: use that version here, or run the command that made it again"
        )
    add_to_path(content["path"])
    job: Job = from_plain(content["job"], Job, where="job", trusted=True)
    stage = job.load_stage()
    if stage_digest(stage) != content["stage_digest"]:
        raise ConfigError(
            f"{path} was made with another version of {type(stage).__name__}: the shardmill "
            f"({__version__}) or the plugin installed here is not the one that made the job "
            f"({content['shardmill']}); install the same one on every machine"
        )
    return job


def keep_failure(ledger: Ledger, unit_name: str, message: str, trace: str = "") -> None:
    """Write failures/NAME.json, as far as the disk allows: it only informs."""
    record = {
        "unit": unit_name,
        "message": mask(message),
        "traceback": mask(trace),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": round(time.time(), 3),
    }
    with suppress(OSError):
        ledger.write_failure(unit_name, record)


def add_to_path(folders: list[str]) -> None:
    """Find the modules that a job names where its sender finds them, after our own places."""
    sys.path += [folder for folder in folders if folder not in sys.path]


def _content(job: Job) -> dict[str, Any]:
    plain = to_plain(job)
    assert isinstance(plain, dict)
    # The token names a run; each task makes its own.
    fields = {name: value for name, value in plain.items() if name != "kind"} | {"token": ""}
    return {
        "format": FORMAT,
        "shardmill": __version__,
        "job": fields,
        "stage_digest": stage_digest(job.load_stage()),
        "path": code_path(plain),
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_bytes())
        if not isinstance(content, dict) or not {"format", "job", "path"} <= content.keys():
            raise ValueError("it lacks what a job has")
    except OSError as error:
        raise ConfigError(
            f"cannot read the job {path}: {error.strerror}. Is its folder shared with this machine?"
        ) from error
    except ValueError as error:
        raise FormatError(f"is not a job: {error}", path=path) from error
    return content
