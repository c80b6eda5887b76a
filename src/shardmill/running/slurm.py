"""The engine of SLURM: an array of tasks that claim units, submitted and, if wanted, watched.

The driver holds no unit. It may be stopped or killed at any time: the tasks go on, the last of them
completes the folder, and running the same command again watches them, or submits what is missing.
The file jobs/NAME.slurm beside a job file says what was submitted for it: {"jobs": ["7", ...]}.

A task is `shardmill work JOB` and replaces the shell of its batch script, so that the signals of
the scheduler reach it: SIGUSR1 some time before the end (`--signal=B:USR1@SECONDS`), after which it
takes no more units; SIGTERM when it must go.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from shardmill.errors import ConfigError, ShardmillError
from shardmill.machine import python_module
from shardmill.model.manifest import stage_digest
from shardmill.model.stage import Unit
from shardmill.running.engine import (
    Assignment,
    Engine,
    Job,
    QueueState,
    job_path,
    jobs_dir,
    write_job,
)
from shardmill.running.events import Event, LogTail
from shardmill.storage.files import list_names
from shardmill.storage.path import UrlPath
from shardmill.storage.text import dump_page, read_json

DURATION = re.compile(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+(:\d\d){0,2}")
GPUS = re.compile(r"(\w+:)?\d+")
MEMORY = re.compile(r"\d+[KMGT]?")
SUBMISSION = ".slurm"
TIMEOUT_S = 60.0  # a busy controller may need most of a minute
STATUS_TIMEOUT_S = 10.0  # whoever asks for the status does not wait for a controller that is down
DEFAULT_MAX_ARRAY_SIZE = 1001  # SLURM's own default
LOG_TAIL_BYTES = 2000
TAIL_PAUSE_S = 1.0
REST_WAIT_S = 5.0  # a receipt on a shared disk may be seen before the line in the log


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
    def num_workers(self) -> int:
        """Worker processes of a task: one a GPU, or one a processor."""
        # A type may stand before the number of GPUs: 'a100:4'.
        return int(str(self.gpus).rpartition(":")[2]) or self.cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm(Engine):
    """An array of `tasks` tasks, of which `at_once` may run together: --array=0-100%25.

    With `wait`, the run returns when all is done; otherwise as soon as the tasks are submitted.
    """

    has_tasks: ClassVar[bool] = True

    tasks: int = 1
    at_once: int | None = None
    task: TaskShape = field(default_factory=TaskShape)
    wait: bool = True
    poll_s: float = 5.0

    def __post_init__(self) -> None:
        if self.tasks < 1 or (self.at_once is not None and self.at_once < 1) or self.poll_s <= 0:
            raise ConfigError(
                f"tasks, at_once and poll_s must be positive: {self.tasks}, {self.at_once}, "
                f"{self.poll_s}"
            )

    def check(self) -> None:
        """Raise `ConfigError` where there is no SLURM."""
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "there is no sbatch here: run this on a login node of the cluster, print the "
                "script with --dry-run, or run each part by hand with --part 1/8, --part 2/8, ..."
            )

    def work(self, assignment: Assignment) -> None:
        """Submit what is missing, unless tasks are at it already, and watch if wanted."""
        if not assignment.units:
            return
        note = _submission_path(assignment.job)
        job_ids = _read_ids(note) if note.exists() else []
        queue = read_queue(job_ids) if job_ids else QueueState(scheduler="SLURM")
        # Tasks that are still there with nothing left but failures only have to end.
        names = {unit.name for unit in assignment.units}
        if queue.num_tasks and not names <= assignment.job.ledger.failure_names():
            message = f"SLURM has {queue.num_tasks} tasks of this already: job {', '.join(job_ids)}"
            assignment.on_event(Event(kind="wait", message=message))
        else:
            job_ids = self.submit(assignment)
        if self.wait:
            SlurmWatch(assignment, job_ids, self.submit, poll_s=self.poll_s).run()

    def submit(self, assignment: Assignment) -> list[str]:
        """Submit tasks for the units and return the ids of their jobs."""
        forget_tries(assignment)
        path = write_job(assignment.job)
        backend = assignment.job.ledger.backend
        backend.make_folder(assignment.job.ledger.out_dir / "claims")
        num_tasks = min(self.tasks, len(assignment.units))
        job_ids: list[str] = []
        scripts = self.scripts(
            assignment.job, num_tasks=num_tasks, num_workers=assignment.num_workers
        )
        for number, script in enumerate(scripts):
            backend.put(path.with_name(f"{path.stem}-{number}.sh"), script.encode())
            job_ids.append(submit(script))
            # After each array: a driver that dies between two leaves no job that nobody knows of.
            backend.put(_submission_path(assignment.job), dump_page({"jobs": job_ids}))
        message = f"submitted to SLURM: job {', '.join(job_ids)}"
        assignment.on_event(Event(kind="wait", message=message))
        return job_ids

    def scripts(self, job: Job, *, num_tasks: int, num_workers: int | None) -> list[str]:
        """Return the scripts to submit: one, or several where arrays may not be so large."""
        return [
            write_script(
                self.task,
                array,
                job_path(job),
                name=f"shardmill-{job_path(job).parent.parent.name}",
                workers=num_workers or self.task.num_workers,
                cwd=Path.cwd(),
            )
            for array in arrays(num_tasks, self.at_once, max_array_size())
        ]

    def preview(self, job: Job, *, num_workers: int | None) -> str:
        """Return the batch scripts that would be submitted."""
        return "\n".join(self.scripts(job, num_tasks=self.tasks, num_workers=num_workers))

    def without_waiting(self) -> Self:
        """Return the engine that submits and does not watch."""
        return replace(self, wait=False)

    def queue_state(self, out_dir: Path) -> QueueState | None:
        """Return what squeue says of the jobs that were last submitted for a folder."""
        if shutil.which("squeue") is None:
            return None
        job_ids = submitted_jobs(out_dir)
        return read_queue(job_ids, timeout_s=STATUS_TIMEOUT_S) if job_ids else None

    def requeue(self) -> bool:
        """Ask for another turn of the task that this process is."""
        job_id = os.environ.get("SLURM_JOB_ID")
        return job_id is not None and _call("scontrol", "requeue", job_id).returncode == 0


class SlurmWatch:
    """The driver while tasks work: it tells what they do, and submits again what is left."""

    def __init__(
        self,
        assignment: Assignment,
        job_ids: Sequence[str],
        submit: Callable[[Assignment], list[str]],
        *,
        poll_s: float,
    ) -> None:
        self._assignment, self._job_ids, self._submit = assignment, job_ids, submit
        self._poll_s = poll_s
        self._ledger = assignment.job.ledger
        self._tail = LogTail(self._ledger.out_dir / "events", own_token=self._ledger.token)
        self._untold = {unit.name for unit in assignment.units}
        self._said = ""

    def run(self) -> None:
        """Return when nothing is left to do but what failed, or when told to stop."""
        num_before = len(self._assignment.units)
        while not self._assignment.should_stop():
            if self._is_over():
                left = self._left()
                if not left:
                    _call("scancel", "--state=PENDING", *self._job_ids)
                    self._tell_rest()
                    return
                # Their time was over, or they were cancelled. Again, as long as it helps.
                if len(left) == num_before:
                    raise ShardmillError(
                        f"the tasks of job {', '.join(self._job_ids)} ended, and none of the "
                        f"{len(left)} units that are left was done. What the last of them "
                        f"printed:\n{self._log_tail()}"
                    )
                num_before = len(left)
                self._job_ids = self._submit(replace(self._assignment, units=left))
            self._sleep()

    def _is_over(self) -> bool:
        if not self._left():
            return True
        queue = read_queue(self._job_ids)
        self._say(describe(queue))
        return queue.answers and queue.num_tasks == 0

    def _sleep(self) -> None:
        deadline_s = time.monotonic() + self._poll_s
        while time.monotonic() < deadline_s and not self._assignment.should_stop():
            self._tell_events()
            self._assignment.on_event(Event(kind="tick"))
            time.sleep(min(TAIL_PAUSE_S, self._poll_s))

    def _tell_events(self) -> None:
        for event in self._tail.read():
            # A task that was taken for dead may call units failed which others did since.
            if event.kind != "failed" or self._ledger.failure_path(event.unit).exists():
                self._assignment.relay(event)
                if event.kind in ("done", "failed"):
                    self._untold.discard(event.unit)

    def _tell_rest(self) -> None:
        """Tell what is in the folder before it is in a log."""
        deadline_s = time.monotonic() + REST_WAIT_S
        while self._untold and time.monotonic() < deadline_s:
            self._tell_events()
            time.sleep(min(0.1, self._poll_s))
        for failure in self._ledger.read_failures():
            if failure["unit"] in self._untold:
                message = str(failure["message"])
                self._assignment.relay(Event(kind="failed", unit=failure["unit"], message=message))

    def _left(self) -> list[Unit]:
        over = self._ledger.receipt_names() | self._ledger.failure_names()
        return [unit for unit in self._assignment.units if unit.name not in over]

    def _say(self, message: str) -> None:
        if message and message != self._said:
            self._said = message
            self._assignment.on_event(Event(kind="wait", message=message))

    def _log_tail(self) -> str:
        path = job_path(self._assignment.job)
        log_dir = Path.cwd() if isinstance(path, UrlPath) else path.parent
        logs = sorted(log_dir.glob(f"{path.stem}-*.log"), key=lambda log: log.stat().st_mtime)
        with suppress(IndexError, OSError):
            return logs[-1].read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        return f"nothing in {log_dir}: is that folder on a disk that all nodes share?"


def describe(queue: QueueState) -> str:
    """Return what is worth telling of a queue: that all wait, and why; or that it is silent."""
    if not queue.answers:
        return "SLURM does not answer; the tasks go on, and so does waiting for them"
    if queue.num_running or not queue.why:
        return ""
    return f"SLURM lets {queue.num_waiting} tasks wait: {queue.why}"


def forget_tries(assignment: Assignment) -> None:
    """Remove what would keep tasks, who believe names of files, from these units.

    That is receipts that are not valid, and failures, which are to be tried again.
    """
    ledger = assignment.job.ledger
    names, there = {unit.name for unit in assignment.units}, ledger.receipt_names()
    listed = [unit for unit in assignment.units if unit.name in there]
    digest = stage_digest(assignment.stage)
    # One that an older listing did not show may be valid.
    invalid = [unit.name for unit in listed if ledger.valid_receipt(unit, digest) is None]
    if invalid:
        ledger.forget(invalid)
    ledger.backend.remove([ledger.failure_path(name) for name in names & ledger.failure_names()])


def submitted_jobs(out_dir: Path) -> list[str]:
    """Return the ids of SLURM's jobs that were last submitted for a folder, or none."""
    folder = jobs_dir(out_dir)
    names = [name for name in list_names(folder) if name.endswith(SUBMISSION)]
    return [job_id for name in names for job_id in _read_ids(folder / name)]


def _submission_path(job: Job) -> Path:
    return job_path(job).with_suffix(SUBMISSION)


def _read_ids(path: Path) -> list[str]:
    return [str(job_id) for job_id in read_json(path)["jobs"]]


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
    program = shape.program or shlex.join(python_module("shardmill"))
    requeue = " --requeue slurm" if shape.requeue else ""
    lines = [f"#SBATCH --{key}={value}" for key, value in wanted if value is not None]
    lines.append("#SBATCH --requeue" if shape.requeue else "#SBATCH --no-requeue")
    lines += [f"#SBATCH {line}" for line in shape.options]
    lines += ["", *shape.setup]
    lines.append(f"exec {program} work {shlex.quote(str(job_path))} --workers {workers}{requeue}")
    return "#!/bin/bash\n" + "\n".join(lines) + "\n"


def arrays(num_tasks: int, at_once: int | None, max_array_size: int) -> list[str]:
    """Return the arrays that make up so many tasks: ['0-100%25'], or several if one is too large.

    Each gets its share of the tasks that may run at once.
    """
    # MaxArraySize is one more than the largest task number.
    num = -(-num_tasks // max(1, max_array_size))
    sizes = [num_tasks * (i + 1) // num - num_tasks * i // num for i in range(num)]
    if at_once is None:
        return [f"0-{size - 1}" for size in sizes]
    return [f"0-{size - 1}%{max(1, round(at_once * size / num_tasks))}" for size in sizes]


def submit(script: str) -> str:
    """Submit a script and return the id of its job; a refusal says what the cluster has."""
    done = _call("sbatch", "--parsable", given=script)
    if done.returncode == 0:
        return done.stdout.strip().partition(";")[0]
    complaint = "; ".join(
        line.removeprefix("sbatch: error: ") for line in done.stderr.strip().splitlines()
    )
    # 'The cluster has: preempt* (2 nodes, 8 CPUs, 32000 MB, gpu:4). '
    offer = _call("sinfo", "-h", "-o", "%P (%D nodes with %c CPUs, %m MB, GPUs: %G)").stdout
    has = ", ".join(line.strip() for line in offer.splitlines() if line.strip())
    raise ConfigError(
        f"sbatch refuses the array: {complaint}. {f'The cluster has: {has}. ' if has else ''}"
        "Correct the file given to --on"
    )


def read_queue(job_ids: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> QueueState:
    """Return how many tasks of these jobs are in the queue."""
    words = ("squeue", "-h", "-r", "-j", ",".join(job_ids), "-o", "%T|%r")
    done = _call(*words, timeout_s=timeout_s)
    # SLURM forgets a job some minutes after its end, and then calls its id invalid.
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        return QueueState(scheduler="SLURM", answers=False)
    rows = [line.partition("|")[::2] for line in done.stdout.splitlines()]
    states = Counter(state for state, _ in rows)
    # 'None' is what squeue prints before the scheduler has looked at a task.
    reasons = {reason for state, reason in rows if state == "PENDING"} - {"None"}
    return QueueState(
        scheduler="SLURM",
        num_running=states["RUNNING"],
        num_waiting=states["PENDING"],
        num_tasks=states.total(),
        why=", ".join(sorted(reasons)),
    )


def max_array_size() -> int:
    """Return the cluster's MaxArraySize: task numbers must be below it."""
    for line in _call("scontrol", "show", "config").stdout.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize" and value.strip().isdigit():
            return int(value)
    return DEFAULT_MAX_ARRAY_SIZE


def _call(
    *words: str, given: str = "", timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, input=given, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]}: {error}")
