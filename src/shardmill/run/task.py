"""A task of a job: claims units of a shared folder and works them off until none is left.

Tasks know nothing of each other but their claims and heartbeats. Any number may run, on any number
of machines that share the folder; they may start late, end early, be killed and started again.
SIGUSR1 says that the time is nearly over: the task finishes what it has begun and takes no more.

A job as a file, for tasks that start later and elsewhere: `shardmill work OUT/jobs/NAME.json`.

    {"format": 1, "shardmill": "0.1.0", "job": {"stage": ..., "out_dir": ..., ...},
     "stage_digest": "...", "path": [...]}

NAME is a digest of the content, so the same command writes the same file. It holds the spec and
where modules are found, and never a credential: those come from the environment of the task.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill import __version__
from shardmill.errors import ConfigError, FormatError, LockedError, StaleError
from shardmill.machine import count_cpus
from shardmill.model.codec import digest, from_plain, to_plain
from shardmill.model.manifest import stage_digest
from shardmill.model.stage import Stage, Unit
from shardmill.run.claims import Claims, Supply
from shardmill.run.events import Event, OnEvent
from shardmill.run.job import Job
from shardmill.run.local import ProcessCrew
from shardmill.run.lock import FolderLock, LifeWatch, LockTiming, task_lock_name
from shardmill.run.plan import collect
from shardmill.run.pool import Fleet
from shardmill.run.progress import RunBooks, RunReport
from shardmill.run.setup import Drain, StopSignals, naming, opened, raise_interrupted, remove_claims
from shardmill.shards.ledger import Ledger
from shardmill.storage.folder import backend_of
from shardmill.storage.path import as_path
from shardmill.storage.text import dump_page, parse_json

FORMAT = 1
NAME_DIGITS = 12


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job and the stage that it names, loaded and found to be the same as when it was written."""

    job: Job
    stage: Stage


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


def read_job(path: Path) -> JobFile:
    """Return the job of a file; one of another version, or with another stage, is refused."""
    content = _read(path)
    if content["format"] != FORMAT:
        raise ConfigError(
            f"{path} is a job of shardmill {content.get('shardmill', '?')} in format "
            f"{content['format']}, and this is shardmill {__version__}, which reads format "
            f"{FORMAT}: use that version here, or run the command that made it again"
        )
    sys.path += [folder for folder in content["path"] if folder not in sys.path]
    job: Job = from_plain(content["job"], Job, where="job")
    stage = job.load_stage()
    if stage_digest(stage) != content["stage_digest"]:
        raise ConfigError(
            f"{path} was made with another version of {type(stage).__name__}: the shardmill "
            f"({__version__}) or the plugin installed here is not the one that made the job "
            f"({content['shardmill']}); install the same one on every machine"
        )
    return JobFile(job, stage)


def _content(job: Job) -> dict[str, Any]:
    # The token names a run; each task makes its own.
    plain = {name: value for name, value in _plain(job).items() if name not in ("token", "kind")}
    return {
        "format": FORMAT,
        "shardmill": __version__,
        "job": plain | {"token": ""},
        "stage_digest": stage_digest(job.load_stage()),
        "path": [str(Path(folder).absolute()) for folder in sys.path],
    }


def _plain(job: Job) -> dict[str, Any]:
    plain = to_plain(job)
    assert isinstance(plain, dict)
    return plain


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


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task did, how many units are not over, and whether it ran out of time for them."""

    run: RunReport
    num_left: int
    out_of_time: bool


def run_task(
    found: JobFile,
    *,
    workers: int | None = None,
    on_event: OnEvent | None = None,
    timing: LockTiming | None = None,
) -> TaskReport:
    """Work on a job until nothing is left to claim, and complete the folder if that was all."""
    job, timing = found.job.for_run(secrets.token_hex(8)), timing or LockTiming()
    ledger = job.ledger
    ledger.backend.make_folder(ledger.out_dir / "claims")
    books = RunBooks(ledger.out_dir)
    lock = FolderLock(
        ledger.out_dir / "locks", task_lock_name(ledger.token), ledger.token, timing=timing
    )
    listeners: list[OnEvent] = [books, on_event] if on_event else [books]
    with naming(ledger), lock, opened(ledger, listeners) as tell:
        units = _planned_units(ledger, found.stage)
        num_done = len(ledger.receipt_names())
        tell(Event(kind="plan", num_units=len(units), num_done=num_done))
        watch = LifeWatch(ledger.out_dir / "locks", timing)
        supply = Supply(ledger, units, Claims(ledger.out_dir / "claims", ledger.token), watch, tell)
        _work(job, supply, count_cpus() if workers is None else workers, lock, tell)
        num_left = supply.num_left()
        manifest = None
        if num_left == 0:
            rate = job.max_skip_rate
            manifest = collect(ledger, found.stage, units, max_skip_rate=rate)
        if manifest is not None:
            remove_claims(ledger)
        out_of_time = supply.is_closed_early and num_left > 0
        return TaskReport(books.report(manifest), num_left, out_of_time)


def _planned_units(ledger: Ledger, stage: Stage) -> list[Unit]:
    record = ledger.read_stage()
    # Our lock is made: whoever plans anew from here on sees it, after taking inputs.json away.
    is_ours = record is not None and record.digest == stage_digest(stage)
    if not is_ours or ledger.read_inputs() is None:
        raise StaleError(
            f"{ledger.out_dir} is not, or no longer, the folder that this job was made for: run "
            "the command that makes the folder again"
        )
    return ledger.read_units()


def _work(job: Job, supply: Supply, num_workers: int, lock: FolderLock, on_event: OnEvent) -> None:
    def tell(event: Event) -> None:
        supply.note(event)
        on_event(event)

    with StopSignals(raising=False) as signals, Drain(supply.close):
        try:
            Fleet(
                job,
                (),
                ProcessCrew(job, num_workers),
                on_event=tell,
                should_stop=_stopper(job.ledger, lock, signals),
                more=supply,
            ).run()
        finally:
            supply.give_back()
            _raise_if_stopped(job.ledger, signals, lock)


def _raise_if_stopped(ledger: Ledger, signals: StopSignals, lock: FolderLock) -> None:
    if signals.number:
        raise_interrupted(signals.number, ledger.out_dir)
    if _is_fenced(ledger, lock):
        raise LockedError(
            f"other tasks took this one for dead and work on its units in {ledger.out_dir}; this "
            "one stops here"
        )


def _stopper(ledger: Ledger, lock: FolderLock, signals: StopSignals) -> Callable[[], bool]:
    return lambda: signals.number != 0 or _is_fenced(ledger, lock)


def _is_fenced(ledger: Ledger, lock: FolderLock) -> bool:
    return lock.lost or not ledger.draft_dir.exists()
