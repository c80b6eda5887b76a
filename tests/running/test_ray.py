"""Units on a real Ray cluster of two nodes: opened once, shared out, and faults of every kind."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers import signal_quietly, snapshot, start_driver
from ray_nodes import kill_head, ray_cluster, worker_pids
from stages_for_tests import Lines, Opening, Unruly

from shardmill.errors import ConfigError
from shardmill.model.codec import to_plain
from shardmill.running.events import read_log
from shardmill.running.ray import Ray
from shardmill.running.runner import run_stage

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


CLIENT_PORT = free_port()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster(1, 1, gpus=1, client_port=CLIENT_PORT) as running:
        yield running


def wait_until(condition: Callable[[], object], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def num_receipts(out: Path) -> int:
    return len(list(out.glob("receipts/*")))


def times_begun(out: Path) -> Counter[str]:
    logs = (out / "events").glob("*.jsonl")
    return Counter(e.event.unit for log in logs for e in read_log(log) if e.event.kind == "start")


def unruly(tmp_path: Path, **deeds: str) -> Unruly:
    (tmp_path / "notes").mkdir(exist_ok=True)
    deeds = {name.lstrip("u"): deed for name, deed in deeds.items()}
    return Unruly(notes=tmp_path / "notes", deeds=deeds)


def test_each_actor_opens_the_stage_once_and_the_bytes_are_the_same(
    tmp_path: Path, cluster: Any
) -> None:
    stage, out = Opening(num_units=24, sleep_s=0.1, notes=tmp_path), tmp_path / "out"
    report = run_stage(stage, out, on=Ray(address=cluster.address))
    assert report.complete and report.num_done == 24
    opened = (tmp_path / "opened").read_text().split()
    assert len(opened) == len(set(opened)) == 2, "an actor for each node of one processor"
    assert set(times_begun(out).values()) == {1}
    run_stage(stage, tmp_path / "calm", workers=0)
    assert snapshot(out) == snapshot(tmp_path / "calm")
    assert list((out / ".draft").iterdir()) == [] and list((out / "locks").iterdir()) == []


def test_parts_of_a_gpu_make_more_actors(tmp_path: Path, cluster: Any) -> None:
    stage = Opening(num_units=16, sleep_s=0.3, notes=tmp_path)
    engine = Ray(address=cluster.address, cpus=0, gpus=0.5)
    assert run_stage(stage, tmp_path / "out", on=engine).complete
    assert len(set((tmp_path / "opened").read_text().split())) == 4


def test_from_outside_of_the_cluster(tmp_path: Path, cluster: Any) -> None:
    engine = Ray(address=f"ray://127.0.0.1:{CLIENT_PORT}")
    assert run_stage(Lines(num_units=6), tmp_path / "out", on=engine, workers=1).complete


def test_a_unit_that_kills_its_actor_fails_alone(tmp_path: Path, cluster: Any) -> None:
    stage = unruly(tmp_path, u00002="kill", u00004="raise once")
    report = run_stage(stage, tmp_path / "out", on=Ray(address=cluster.address), retries=1)
    assert [unit for unit, _ in report.failures] == ["00002"] and report.num_done == 5
    worked = Counter((tmp_path / "notes" / "worked").read_text().split())
    assert worked["00002"] == 2
    # A unit that was done but not committed when its actor died is done once more for each death.
    assert all(count <= 1 + 2 for count in worked.values())


def test_an_error_of_ours_in_open_ends_the_run_with_its_message(
    tmp_path: Path, cluster: Any
) -> None:
    stage = unruly(tmp_path, open="config")
    with pytest.raises(ConfigError, match="no such model"):
        run_stage(stage, tmp_path / "out", on=Ray(address=cluster.address))


@pytest.mark.parametrize(("cpus", "gpus"), [(1.0, 4.0), (64.0, 0.0)])
def test_a_cluster_without_what_was_asked_for_is_described(
    tmp_path: Path, cluster: Any, cpus: float, gpus: float
) -> None:
    with pytest.raises(ConfigError, match=r"no node .* it has 3 nodes: .*1 CPUs and 1 GPUs"):
        run_stage(Lines(), tmp_path / "out", on=Ray(address=cluster.address, cpus=cpus, gpus=gpus))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_listens(tmp_path: Path, scheme: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot reach a Ray cluster at .*ray status"):
        run_stage(Lines(), tmp_path / "out", on=Ray(address=f"{scheme}127.0.0.1:1"))
    assert not (tmp_path / "out").exists()


def test_actors_drivers_nodes_and_the_head_die(tmp_path: Path) -> None:
    """With no retries at all: none of these deaths is the fault of a unit."""
    stage, out = Lines(num_units=120, sleep_s=0.3), tmp_path / "out"
    num_deaths = 0
    with ray_cluster(1, 1) as cluster:
        options: dict[str, Any] = {"on": to_plain(Ray(address=cluster.address)), "retries": 0}
        driver = start_driver(stage, out, **options)
        wait_until(lambda: num_receipts(out) >= 4)
        cluster.remove_node(sorted(cluster.worker_nodes, key=id)[0], allow_graceful=False)
        num_deaths += 1
        wait_until(lambda: num_receipts(out) >= 10)
        signal_quietly(driver.pid, signal.SIGKILL)
        driver.communicate()
        num_deaths += 1
        cluster.add_node(num_cpus=1)
        driver = start_driver(stage, out, **options)
        wait_until(lambda: num_receipts(out) >= 20)
        kill_head(cluster)
        num_deaths += 2
        printed, errors = driver.communicate(timeout=120)
        assert driver.returncode != 0 and b"Ray cluster has gone away" in errors, printed
        assert num_receipts(out) < 120
    assert run_stage(Lines(num_units=120, sleep_s=0.3), out, workers=8).complete
    run_stage(stage, tmp_path / "calm", workers=8)
    assert snapshot(out) == snapshot(tmp_path / "calm")
    assert times_begun(out).total() <= 120 + num_deaths * 3


@pytest.mark.cluster
def test_actors_that_are_killed_again_and_again(tmp_path: Path, cluster: Any) -> None:
    stage, out = Lines(num_units=60, sleep_s=0.5), tmp_path / "out"
    driver = start_driver(stage, out, on=to_plain(Ray(address=cluster.address)), retries=1000)
    for count in range(6, 42, 6):
        wait_until(lambda count=count: num_receipts(out) >= count)  # type: ignore[misc]
        for pid in worker_pids(cluster):
            signal_quietly(pid, signal.SIGKILL)
    printed, errors = driver.communicate(timeout=300)
    assert json.loads(printed) == {"complete": True, "done": 60}, errors
    assert times_begun(out).total() <= 60 + 6 * 2 * 3
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
