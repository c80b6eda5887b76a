"""The engine of SLURM: an array of tasks that claim units, submitted and, if wanted, watched.

The driver holds no unit. It may be stopped or killed at any time: the tasks go on, the last of them
completes the folder, and running the same command again watches them, or submits what is missing.

The driver while SLURM's tasks work: it tells what they do, and submits again what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.stage import Unit
from shardmill.run.engine import Errand
from shardmill.run.events import Event, LogTail
from shardmill.run.job import Job
from shardmill.run.lock import task_lock_name
from shardmill.run.slurm.queue import (
    QueueState,
    cancel_waiting,
    find_sbatch,
    max_array_size,
    read_queue,
    submit,
)
from shardmill.run.slurm.script import TaskShape, arrays, write_script
from shardmill.run.task import job_path, jobs_dir, write_job
from shardmill.storage.folder import list_names
from shardmill.storage.path import UrlPath
from shardmill.storage.text import dump_page, read_json

LOG_TAIL_BYTES = 2000
TAIL_PAUSE_S = 1.0
REST_WAIT_S = 5.0


class SlurmWatch:
    """Waits for the tasks of jobs."""

    def __init__(
        self,
        errand: Errand,
        job_ids: Sequence[str],
        submit: Callable[[Errand], list[str]],
        *,
        poll_s: float,
    ) -> None:
        self._errand, self._job_ids, self._submit = errand, job_ids, submit
        self._poll_s = poll_s
        self._ledger = errand.job.ledger
        self._tail = LogTail(self._ledger.out_dir / "events", own_token=self._ledger.token)
        self._untold = {unit.name for unit in errand.units}
        self._said = ""

    def run(self) -> None:
        """Return when nothing is left to do but what failed, or when told to stop."""
        num_before = len(self._errand.units)
        while not self._errand.should_stop():
            if self._is_over():
                left = self._left()
                if not left:
                    cancel_waiting(self._job_ids)
                    self._tell_rest()
                    return
                # Their time was over, or they were cancelled. Again, as long as it helps.
                if len(left) == num_before:
                    raise ShardmillError(self._complaint(len(left)))
                num_before = len(left)
                self._job_ids = self._submit(replace(self._errand, units=left))
            self._sleep()

    def _is_over(self) -> bool:
        if not self._left():
            return True
        queue = read_queue(self._job_ids)
        if queue is None:
            self._say("SLURM does not answer; the tasks go on, and so does waiting for them")
            return False
        self._say(describe(queue))
        return queue.num_tasks == 0

    def _sleep(self) -> None:
        deadline_s = time.monotonic() + self._poll_s
        while time.monotonic() < deadline_s and not self._errand.should_stop():
            self._tell_events()
            self._errand.on_event(Event(kind="tick"))
            time.sleep(min(TAIL_PAUSE_S, self._poll_s))

    def _tell_events(self) -> None:
        for event in self._tail.read():
            # A task that was taken for dead may call units failed which others did since.
            if event.kind != "failed" or self._ledger.failure_path(event.unit).exists():
                self._errand.relay(event)
                if event.kind != "start":
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
                self._errand.relay(Event(kind="failed", unit=failure["unit"], message=message))

    def _left(self) -> list[Unit]:
        over = self._ledger.receipt_names() | self._ledger.failure_names()
        return [unit for unit in self._errand.units if unit.name not in over]

    def _say(self, message: str) -> None:
        if message and message != self._said:
            self._said = message
            self._errand.on_event(Event(kind="wait", message=message))

    def _complaint(self, num_left: int) -> str:
        return (
            f"the tasks of job {', '.join(self._job_ids)} ended, and none of the {num_left} units "
            f"that are left was done. What the last of them printed:\n{self._log_tail()}"
        )

    def _log_tail(self) -> str:
        path = job_path(self._errand.job)
        log_dir = Path.cwd() if isinstance(path, UrlPath) else path.parent
        logs = sorted(log_dir.glob(f"{path.stem}-*.log"), key=lambda log: log.stat().st_mtime)
        with suppress(IndexError, OSError):
            return logs[-1].read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        return f"nothing in {log_dir}: is that folder on a disk that all nodes share?"


def describe(queue: QueueState) -> str:
    """Return what is worth telling of a queue: that all wait, and why."""
    if queue.states["RUNNING"] or not queue.why:
        return ""
    return f"SLURM lets {queue.num_waiting} tasks wait: {queue.why}"


SUBMISSION = ".slurm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """An array of `tasks` tasks, of which `at_once` may run together: --array=0-100%25.

    With `wait`, the run returns when all is done; otherwise as soon as the tasks are submitted.
    """

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

    def lock_name(self, part: tuple[int, int]) -> str:
        """Return the name of the lock of whoever submits and watches."""
        if part != (1, 1):
            raise ConfigError("--part is for machines without a scheduler: leave it out with SLURM")
        return task_lock_name("driver")

    def check(self) -> None:
        """Raise `ConfigError` where there is no SLURM."""
        find_sbatch()

    def scripts(
        self, job: Job, *, num_tasks: int, num_workers: int | None, max_size: int
    ) -> list[str]:
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
            for array in arrays(num_tasks, self.at_once, max_size)
        ]

    def work(self, errand: Errand) -> None:
        """Submit what is missing, unless tasks are at it already, and watch if wanted."""
        if not errand.units:
            return
        job_ids = read_submission(errand.job)
        num_tasks = count_tasks(job_ids)
        if num_tasks and not has_only_failures(errand):
            message = f"SLURM has {num_tasks} tasks of this already: job {', '.join(job_ids)}"
            errand.on_event(Event(kind="wait", message=message))
        else:
            job_ids = self.submit(errand)
        if self.wait:
            SlurmWatch(errand, job_ids, self.submit, poll_s=self.poll_s).run()

    def submit(self, errand: Errand) -> list[str]:
        """Submit tasks for the units of the errand and return the ids of their jobs."""
        forget_tries(errand)
        path = write_job(errand.job)
        backend = errand.job.ledger.backend
        backend.make_folder(errand.job.ledger.out_dir / "claims")
        scripts = self.scripts(
            errand.job,
            num_tasks=min(self.tasks, len(errand.units)),
            num_workers=errand.num_workers,
            max_size=max_array_size(),
        )
        job_ids: list[str] = []
        for number, script in enumerate(scripts):
            backend.put(path.with_name(f"{path.stem}-{number}.sh"), script.encode())
            job_ids.append(submit(script))
            backend.put(_submission_path(errand.job), dump_page({"jobs": job_ids}))
        message = f"submitted to SLURM: job {', '.join(job_ids)}"
        errand.on_event(Event(kind="wait", message=message))
        return job_ids


def read_submission(job: Job) -> Sequence[str]:
    """Return the ids of SLURM's jobs that were last submitted for a job, or none."""
    try:
        return _read_ids(_submission_path(job))
    except FileNotFoundError:
        return []


def submitted_jobs(out_dir: Path) -> list[str]:
    """Return the ids of SLURM's jobs that were last submitted for a folder, or none."""
    folder = jobs_dir(out_dir)
    notes = (folder / name for name in list_names(folder) if name.endswith(SUBMISSION))
    return [job_id for path in notes for job_id in _read_ids(path)]


def count_tasks(job_ids: Sequence[str]) -> int:
    """Return how many tasks of these jobs are in the queue."""
    queue = read_queue(job_ids) if job_ids else None
    return 0 if queue is None else queue.num_tasks


def has_only_failures(errand: Errand) -> bool:
    """Say whether tasks that are still about have nothing to do but to end."""
    return {unit.name for unit in errand.units} <= errand.job.ledger.failure_names()


def forget_tries(errand: Errand) -> None:
    """Remove what would keep tasks, who believe names of files, from these units.

    That is receipts that are not valid, and failures, which are to be tried again.
    """
    ledger = errand.job.ledger
    names = {unit.name for unit in errand.units}
    invalid = sorted(names & ledger.receipt_names())
    if invalid:
        ledger.forget(invalid)
    ledger.backend.remove([ledger.failure_path(name) for name in names & ledger.failure_names()])


def _submission_path(job: Job) -> Path:
    return job_path(job).with_suffix(SUBMISSION)


def _read_ids(path: Path) -> list[str]:
    return [str(job_id) for job_id in read_json(path)["jobs"]]
