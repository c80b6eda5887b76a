"""Arrays on a real SLURM of two nodes: shared units, preemption, death, mistakes."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers import signal_quietly, snapshot, start_driver
from invoked import invoke, invoke_json
from slurm_cluster import SlurmCluster, missing_programs, slurm_cluster
from stages_for_tests import Lines, Unruly

from shardmill.errors import ConfigError, LockedError, ShardmillError
from shardmill.model.codec import to_plain
from shardmill.running.events import Event, read_log
from shardmill.running.runner import run_stage
from shardmill.running.slurm import Slurm, TaskShape, submitted_jobs
from shardmill.running.status import read_status

pytestmark = [
    pytest.mark.skipif(bool(missing_programs()), reason=f"without {missing_programs()}"),
    pytest.mark.xdist_group("slurm"),
]
MAX_ARRAY_SIZE = 6
# What a process that is killed may have begun: one at work, and commits on their way.
HELD = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    folder = tmp_path_factory.mktemp("slurm")
    with slurm_cluster(folder, max_array_size=MAX_ARRAY_SIZE) as running:
        yield running


@pytest.fixture(autouse=True)
def empty_queue(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let commands find the cluster, and leave nothing in its queue."""
    monkeypatch.setenv("SLURM_CONF", cluster.conf_path)
    yield
    cluster.call("scancel", "-u", "root")
    wait_until(lambda: not cluster.jobs())


def wait_until(condition: Callable[[], object], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def slurm(tasks: int = 2, **fields: Any) -> Slurm:
    shape = {name: fields.pop(name) for name in list(fields) if name in TaskShape.__slots__}
    return Slurm(tasks=tasks, task=TaskShape(**shape), poll_s=0.5, **fields)


def num_receipts(out: Path) -> int:
    return len(list(out.glob("receipts/*")))


def public(out: Path) -> dict[str, bytes]:
    return {name: data for name, data in snapshot(out).items() if not name.startswith("jobs/")}


def calm(stage: Lines, tmp_path: Path) -> dict[str, bytes]:
    run_stage(stage, tmp_path / "calm", workers=0)
    return snapshot(tmp_path / "calm")


def times_begun(out: Path) -> Counter[str]:
    logs = (out / "events").glob("*.jsonl")
    return Counter(e.event.unit for log in logs for e in read_log(log) if e.event.kind == "start")


def test_an_array_does_every_unit_once(tmp_path: Path) -> None:
    stage, out = Lines(num_units=16, sleep_s=0.1), tmp_path / "out"
    events: list[Event] = []
    report = run_stage(stage, out, on=slurm(2), on_event=events.append)
    assert report.complete and report.num_done == 16 and not report.failures
    assert set(times_begun(out).values()) == {1}
    assert public(out) == calm(stage, tmp_path)
    done = [event.unit for event in events if event.kind == "done"]
    assert sorted(done) == [unit.name for unit in stage.units()], "the driver tells what tasks did"
    assert list((out / "locks").iterdir()) == [] and list((out / ".draft").iterdir()) == []


def test_more_tasks_than_an_array_may_have_become_several(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    out = tmp_path / "out"
    report = run_stage(Lines(num_units=20), out, on=slurm(MAX_ARRAY_SIZE + 3, wait=False))
    assert not report.complete
    scripts = [path.read_text() for path in sorted((out / "jobs").glob("*.sh"))]
    assert ["--array=0-3\n" in scripts[0], "--array=0-4\n" in scripts[1]] == [True, True]
    wait_until((out / "manifest.json").exists)


def test_status_tells_of_queued_tasks_and_why_they_wait(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    out = tmp_path / "out"
    run_stage(
        Lines(num_units=9), out, on=slurm(MAX_ARRAY_SIZE + 3, wait=False, options=("--hold",))
    )
    told = invoke("status", out).output
    assert "9 tasks queued in SLURM: JobHeldUser" in told
    queued = invoke_json("status", out)["queued"]
    assert queued == {"num_tasks": 9, "why": "JobHeldUser"}
    for job_id in submitted_jobs(out):
        cluster.call("scontrol", "release", job_id)
    wait_until((out / "manifest.json").exists)
    assert "in SLURM" not in invoke("status", out).output


def test_without_waiting_the_folder_completes_itself_and_the_command_joins(tmp_path: Path) -> None:
    stage, out = Lines(num_units=12, sleep_s=0.4), tmp_path / "out"
    first = run_stage(stage, out, on=slurm(2, wait=False))
    assert not first.complete and first.num_done == 0
    seen: list[Event] = []
    run_stage(stage, out, on=slurm(2, wait=False), on_event=seen.append)
    assert any("tasks of this already" in event.message for event in seen)
    assert len(list((out / "jobs").glob("*.sh"))) == 1
    wait_until(lambda: num_receipts(out) > 2)
    status = read_status(out)
    assert status.running and status.num_done > 2 and not status.complete
    with pytest.raises(LockedError):
        run_stage(stage, out, workers=0)
    assert run_stage(stage, out, on=slurm(2)).complete
    assert public(out) == calm(stage, tmp_path)


def test_a_driver_may_die_and_the_next_one_collects(tmp_path: Path) -> None:
    stage, out = Lines(num_units=12, sleep_s=0.4), tmp_path / "out"
    driver = start_driver(stage, out, on=to_plain(slurm(2)))
    wait_until(lambda: num_receipts(out) > 1)
    signal_quietly(-driver.pid, signal.SIGKILL)
    driver.communicate()
    assert run_stage(stage, out, on=slurm(2)).complete
    assert set(times_begun(out).values()) == {1}, "the tasks did not notice"


def test_a_stopped_driver_leaves_the_tasks_alone(tmp_path: Path) -> None:
    stage, out = Lines(num_units=12, sleep_s=0.3), tmp_path / "out"
    driver = start_driver(stage, out, on=to_plain(slurm(2)))
    wait_until(lambda: num_receipts(out) > 1)
    driver.send_signal(signal.SIGINT)
    driver.communicate()
    assert driver.returncode == 128 + signal.SIGINT
    wait_until((out / "manifest.json").exists)


def test_a_preempted_task_is_queued_again_and_loses_what_it_had_begun(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    stage, out = Lines(num_units=14, sleep_s=0.5), tmp_path / "out"
    run_stage(stage, out, on=slurm(2, partition="preempt", wait=False))
    wait_until(lambda: num_receipts(out) > 2)
    cluster.call("sbatch", "-p", "high", "-o", "/dev/null", "--wrap", "sleep 2")
    assert run_stage(stage, out, on=slurm(2, partition="preempt")).complete
    begun = times_begun(out)
    assert begun.total() <= 14 + HELD
    assert public(out) == calm(stage, tmp_path)


def test_failures_are_told_and_tried_again_by_the_next_command(tmp_path: Path) -> None:
    notes, out = tmp_path / "notes", tmp_path / "out"
    notes.mkdir()
    stage = Unruly(notes=notes, deeds={"00001": "raise", "00003": "kill"})
    for _ in range(2):
        report = run_stage(stage, out, on=slurm(2), retries=0)
        assert [unit for unit, _ in report.failures] == ["00001", "00003"]
        assert "a bug in the stage" in dict(report.failures)["00001"]
    assert Counter((notes / "worked").read_text().split())["00001"] == 2
    tails = {failure.unit: failure.tail for failure in read_status(out).failures}
    assert "ValueError: a bug in the stage" in tails["00001"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"partition": "nowhere"}, r"invalid partition.*The cluster has: preempt\*"),
        ({"gpus": 4}, r"node configuration is not available.*GPUs: gpu:2"),
        ({"memory": "900G"}, "Memory specification.*2000 MB"),
        ({"options": ("--no-such-option",)}, "unrecognized option"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_with_what_it_has(
    tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=says):
        run_stage(Lines(), out, on=slurm(**fields))
    assert num_receipts(out) == 0 and not (out / "manifest.json").exists()
    assert list((out / "locks").iterdir()) == []
    if "partition" in fields:
        assert run_stage(Lines(), out, on=slurm()).complete, "corrected, the same folder goes on"


def test_tasks_that_cannot_start_are_quoted(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError, match=r"none of the 12 units[\s\S]*No module named nothing"):
        run_stage(Lines(), tmp_path / "out", on=slurm(program=f"{sys.executable} -m nothing"))


def test_without_sbatch_it_says_what_else_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no sbatch here.*--dry-run.*--part"):
        run_stage(Lines(), tmp_path / "out", on=slurm())
    assert not (tmp_path / "out").exists()


def test_parts_make_no_sense_here(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--part"):
        run_stage(Lines(), tmp_path / "out", on=slurm(), part=(1, 2))
    assert not (tmp_path / "out").exists()


def test_two_drivers_refuse_each_other(tmp_path: Path) -> None:
    stage, out = Lines(num_units=8, sleep_s=0.5), tmp_path / "out"
    first = start_driver(stage, out, on=to_plain(slurm(1)))
    wait_until(lambda: num_receipts(out) > 0)
    with pytest.raises(LockedError, match=f"process {first.pid}"):
        run_stage(stage, out, on=slurm(1))
    printed, _ = first.communicate(timeout=60)
    assert json.loads(printed)["complete"]


@pytest.mark.cluster
def test_time_that_runs_out_is_asked_for_again(tmp_path: Path, cluster: SlurmCluster) -> None:
    """SIGUSR1 comes some seconds after the start; the task ends in good order and is requeued."""
    stage, out = Lines(num_units=120, sleep_s=1.0), tmp_path / "out"
    run_stage(stage, out, on=slurm(2, time="2:00", warn_s=100, wait=False))
    wait_until((out / "manifest.json").exists, timeout_s=500)
    assert set(times_begun(out).values()) == {1}
    restarts = cluster.call("squeue", "-h", "-r", "-o", "%i") + "".join(
        path.read_text() for path in (out / "jobs").glob("*.log")
    )
    assert "another turn" in restarts


@pytest.mark.cluster
def test_a_node_dies_with_its_task_and_comes_back(tmp_path: Path, cluster: SlurmCluster) -> None:
    stage, out = Lines(num_units=60, sleep_s=0.5), tmp_path / "out"
    driver = start_driver(stage, out, on=to_plain(slurm(2)))
    wait_until(lambda: num_receipts(out) > 4)
    cluster.kill("n1")
    wait_until(lambda: num_receipts(out) > 14)
    cluster.start("n1")
    printed, errors = driver.communicate(timeout=300)
    assert json.loads(printed)["complete"], errors
    assert times_begun(out).total() <= 60 + HELD
    cluster.wait_idle(["n1", "n2"])
    assert public(out) == calm(stage, tmp_path)


@pytest.mark.cluster
def test_the_controller_may_be_away_for_a_while(tmp_path: Path, cluster: SlurmCluster) -> None:
    stage, out = Lines(num_units=30, sleep_s=0.5), tmp_path / "out"
    driver = start_driver(stage, out, on=to_plain(slurm(2)))
    wait_until(lambda: num_receipts(out) > 4)
    cluster.kill("slurmctld")
    wait_until(lambda: num_receipts(out) > 20)
    cluster.start("slurmctld")
    printed, errors = driver.communicate(timeout=300)
    assert json.loads(printed)["complete"], errors
    assert set(times_begun(out).values()) == {1}
