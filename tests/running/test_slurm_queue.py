"""What SLURM's commands answer, also when they are missing or complain; small scripts play them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.errors import ConfigError
from shardmill.running import slurm as slurm_queue
from shardmill.running.slurm import Slurm, describe


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole search path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put(bin_dir: Path, name: str, body: str) -> None:
    (bin_dir / name).write_text(f"#!/bin/sh\n{body}\n")
    (bin_dir / name).chmod(0o755)


def test_without_slurm_nothing_is_known(bin_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert not slurm_queue.read_queue(["1"]).answers
    assert slurm_queue.max_array_size() == slurm_queue.DEFAULT_MAX_ARRAY_SIZE
    assert not Slurm().requeue()
    with pytest.raises(ConfigError, match="no sbatch here"):
        Slurm().check()


def test_tasks_are_counted_by_state_and_reason(bin_dir: Path) -> None:
    lines = ["RUNNING|None", "PENDING|Resources", "PENDING|Resources", "PENDING|Priority"]
    put(bin_dir, "squeue", "\n".join(f"echo '{line}'" for line in lines))
    queue = slurm_queue.read_queue(["1", "2"])
    assert (queue.num_tasks, queue.num_waiting, queue.num_running) == (4, 3, 1)
    assert queue.why == "Priority, Resources"


def test_a_job_that_is_forgotten_is_over_and_a_silent_controller_is_not(bin_dir: Path) -> None:
    put(bin_dir, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    queue = slurm_queue.read_queue(["1"])
    assert queue.answers and queue.num_tasks == 0
    put(bin_dir, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert not slurm_queue.read_queue(["1"]).answers


def test_the_id_is_what_sbatch_prints_before_the_cluster(bin_dir: Path) -> None:
    put(bin_dir, "sbatch", "read line; echo '17;mill'")
    assert slurm_queue.submit("#!/bin/bash\n") == "17"


def test_a_refusal_says_what_there_is(bin_dir: Path) -> None:
    put(bin_dir, "sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    put(bin_dir, "sinfo", "echo 'cpu* (4 nodes with 64 CPUs, 256000 MB, GPUs: (null))'")
    with pytest.raises(ConfigError, match=r"invalid partition\. The cluster has: cpu\* \(4 nodes"):
        slurm_queue.submit("")


def test_the_limit_of_arrays_is_read(bin_dir: Path) -> None:
    put(bin_dir, "scontrol", "echo 'MaxArraySize            = 4001'")
    assert slurm_queue.max_array_size() == 4001


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["RUNNING|None", "PENDING|Resources"], ""),
        (["PENDING|None"], ""),
        (["PENDING|None", "PENDING|Resources"], "SLURM lets 2 tasks wait: Resources"),
        (["COMPLETING|None"], ""),
    ],
)
def test_only_a_queue_that_stands_still_is_worth_a_word(
    bin_dir: Path, lines: list[str], says: str
) -> None:
    put(bin_dir, "squeue", "\n".join(f"echo '{line}'" for line in lines))
    assert describe(slurm_queue.read_queue(["1"])) == says
