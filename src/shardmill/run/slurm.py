"""The engine of SLURM: an array of tasks that claim units, submitted and, if wanted, watched.

The driver holds no unit. It may be stopped or killed at any time: the tasks go on, the last of them
completes the folder, and running the same command again watches them, or submits what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardmill.errors import ConfigError
from shardmill.io.folder import list_names
from shardmill.io.jsontext import dump_page, read_json
from shardmill.run.engine import Errand
from shardmill.run.events import Event
from shardmill.run.job import Job
from shardmill.run.jobfile import job_path, jobs_dir, write_job
from shardmill.run.lock import task_lock_name
from shardmill.run.slurm_queue import find_sbatch, max_array_size, read_queue, submit
from shardmill.run.slurm_script import TaskShape, arrays, write_script
from shardmill.run.slurm_watch import SlurmWatch

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
        depot = errand.job.ledger.depot
        depot.make_folder(errand.job.ledger.out_dir / "claims")
        scripts = self.scripts(
            errand.job,
            num_tasks=min(self.tasks, len(errand.units)),
            num_workers=errand.num_workers,
            max_size=max_array_size(),
        )
        job_ids: list[str] = []
        for number, script in enumerate(scripts):
            depot.put(path.with_name(f"{path.stem}-{number}.sh"), script.encode())
            job_ids.append(submit(script))
            depot.put(_submission_path(errand.job), dump_page({"jobs": job_ids}))
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
    ledger.depot.remove([ledger.failure_path(name) for name in names & ledger.failure_names()])


def _submission_path(job: Job) -> Path:
    return job_path(job).with_suffix(SUBMISSION)


def _read_ids(path: Path) -> list[str]:
    return [str(job_id) for job_id in read_json(path)["jobs"]]
