"""The few commands of SLURM that are needed: sbatch, squeue, scontrol; and what they complain."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shardmill.errors import ConfigError

TIMEOUT_S = 60
DEFAULT_MAX_ARRAY_SIZE = 1001


@dataclass(frozen=True, slots=True)
class QueueState:
    """The tasks that are in the queue, by state, and why those wait that do."""

    states: Counter[str]
    reasons: Counter[str]

    @property
    def num_tasks(self) -> int:
        """All tasks that run or will run."""
        return self.states.total()

    @property
    def num_waiting(self) -> int:
        """The tasks that have not begun."""
        return self.states["PENDING"]

    @property
    def why(self) -> str:
        """Why tasks wait, in the words of SLURM; nothing if it has not said yet."""
        return ", ".join(sorted(reason for reason in self.reasons if reason != "None"))


def has_squeue() -> bool:
    """Say whether the queue can be looked at from here."""
    return shutil.which("squeue") is not None


def find_sbatch() -> None:
    """Raise `ConfigError` unless SLURM's commands are here."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "there is no sbatch here: run this on a login node of the cluster, print the script "
            "with --dry-run, or run each part by hand with --part 1/8, --part 2/8, ..."
        )


def submit(script: str) -> str:
    """Submit a script and return the id of its job; a refusal says what the cluster has."""
    done = _call("sbatch", "--parsable", given=script)
    if done.returncode != 0:
        complaint = "; ".join(
            line.removeprefix("sbatch: error: ") for line in done.stderr.strip().splitlines()
        )
        raise ConfigError(
            f"sbatch refuses the array: {complaint}. {_offer()}Mend the file given to --on"
        )
    return done.stdout.strip().partition(";")[0]


def read_queue(job_ids: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> QueueState | None:
    """Return how many tasks of these jobs are in the queue; None if the controller is silent."""
    words = ("squeue", "-h", "-r", "-j", ",".join(job_ids), "-o", "%T|%r")
    done = _call(*words, timeout_s=timeout_s)
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        return None
    rows = [line.partition("|")[::2] for line in done.stdout.splitlines()]
    waiting = Counter(reason for state, reason in rows if state == "PENDING")
    return QueueState(Counter(state for state, _ in rows), waiting)


def cancel_waiting(job_ids: Sequence[str]) -> None:
    """Take the tasks out of the queue that have not begun."""
    _call("scancel", "--state=PENDING", *job_ids)


def max_array_size() -> int:
    """Return the cluster's MaxArraySize: task numbers must be below it."""
    for line in _call("scontrol", "show", "config").stdout.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize" and value.strip().isdigit():
            return int(value)
    return DEFAULT_MAX_ARRAY_SIZE


def requeue_myself() -> bool:
    """Ask for another turn of this very task; return whether we are one and it was granted."""
    job_id = os.environ.get("SLURM_JOB_ID")
    return job_id is not None and _call("scontrol", "requeue", job_id).returncode == 0


def _offer() -> str:
    """Return 'The cluster has: preempt* (2 nodes, 8 CPUs, 32000 MB, gpu:4). '."""
    done = _call("sinfo", "-h", "-o", "%P (%D nodes with %c CPUs, %m MB, GPUs: %G)")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return f"The cluster has: {', '.join(lines)}. " if lines else ""


def _call(
    *words: str, given: str = "", timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, input=given, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]}: {error}")
