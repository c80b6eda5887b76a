"""Drivers killed while the store misbehaves: the objects are those of an undisturbed local run.

SHARDMILL_KILLS sets how many kills the long test does, and SHARDMILL_SEED which.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from drivers import PRIVATE, children_of, signal_quietly, snapshot, start_driver
from faulty_proxy import faulty_proxy, harm_some
from servers import ACCESS_KEY, SECRET_KEY
from stages_for_tests import Lines, Noise

from shardmill.errors import LockedError
from shardmill.running.lock import LockTiming
from shardmill.running.runner import run_stage
from shardmill.running.status import read_status
from shardmill.stages.check.folder import check_folder
from shardmill.storage import objects
from shardmill.storage.files import list_names
from shardmill.storage.path import as_path

SEED = int(os.environ.get("SHARDMILL_SEED", "0"))
NUM_KILLS = int(os.environ.get("SHARDMILL_KILLS", "60"))


def store_snapshot(url: str) -> dict[str, bytes]:
    """Return every object of a folder by its path, except what is private to a run."""
    names = [info.path for info in objects.list_all(url)]
    return {
        name: objects.get(f"{url}/{name}") for name in names if name.split("/")[0] not in PRIVATE
    }


def kill_a_driver(stage: Lines, url: str, rng: random.Random) -> None:
    """Run a driver until it has done a little more, and kill it or its whole group."""
    driver = start_driver(stage, url, workers=rng.choice([0, 1, 2]), retries=1000)
    receipts = as_path(url) / "receipts"
    num_wanted = len(list_names(receipts)) + rng.choice([0, 1, 3])
    deadline = time.monotonic() + 60
    while driver.poll() is None and time.monotonic() < deadline:
        if len(list_names(receipts)) >= num_wanted:
            break
        time.sleep(0.02)
    time.sleep(rng.random() * 0.3)
    if driver.poll() is None:
        workers = children_of(driver.pid)
        target = rng.choice([-driver.pid, driver.pid, *workers])
        signal_quietly(target, signal.SIGKILL)
        signal_quietly(-driver.pid, signal.SIGKILL)
    driver.communicate()


def end_in_calm_bytes(
    store_env: str,
    url: str,
    tmp_path: Path,
    env: pytest.MonkeyPatch,
    *,
    num_kills: int,
    rng: random.Random,
) -> list[str]:
    """Work through faults and kills, compare with a calm run, and return the faults."""
    stage = Lines(num_units=24, sleep_s=0.02)
    run_stage(stage, tmp_path / "calm", workers=0)
    with faulty_proxy(store_env, harm_some(rng.randrange(1000), 0.08)) as proxy:
        env.setenv("AWS_ENDPOINT_URL", proxy.url)
        for _ in range(num_kills):
            if (as_path(url) / "manifest.json").exists():
                break
            kill_a_driver(stage, url, rng)
        report = run_stage(stage, url, workers=2, retries=3)
        assert report.complete
    env.setenv("AWS_ENDPOINT_URL", store_env)
    assert store_snapshot(url) == snapshot(tmp_path / "calm")
    assert check_folder(url).sound
    # A driver that is killed after its last deed leaves its lock in a folder that is complete.
    assert report.num_done == 0 or list_names(as_path(url) / "locks") == []
    return proxy.harm


def test_kills_and_faults_end_in_the_bytes_of_a_calm_local_run(
    store_env: str, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm = end_in_calm_bytes(
        store_env, store_url, tmp_path, monkeypatch, num_kills=3, rng=random.Random(SEED)
    )
    assert len(harm) > 10


@pytest.mark.cluster
def test_many_kills_and_faults(
    store_env: str, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(NUM_KILLS // 6):
        url, local = f"{store_url}/{number}", tmp_path / str(number)
        end_in_calm_bytes(
            store_env, url, local, monkeypatch, num_kills=6, rng=random.Random(SEED + number)
        )


def test_no_output_holds_a_credential(
    store_env: str, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDMILL_STORE_PATIENCE_S", "1")
    with faulty_proxy(store_env, harm_some(1, 0.2, ("denied", "503"))) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        driver = start_driver(Lines(num_units=6), store_url, workers=2)
        said, errors = driver.communicate()
    monkeypatch.setenv("AWS_ENDPOINT_URL", store_env)
    driver = start_driver(Lines(num_units=6), store_url, workers=2)
    later, more = driver.communicate()
    assert b'"complete": true' in later
    everything = [objects.get(f"{store_url}/{i.path}") for i in objects.list_all(store_url)]
    everything += [said, errors, later, more]
    everything += [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert not any(secret.encode() in content for content in everything)


def test_a_second_driver_is_refused_while_the_first_lives(store_url: str) -> None:
    driver = start_driver(Lines(num_units=40, sleep_s=0.2), store_url, workers=1)
    try:
        while not list_names(as_path(store_url) / "receipts"):
            assert driver.poll() is None
            time.sleep(0.05)
        with pytest.raises(LockedError, match=f"process {driver.pid}"):
            run_stage(Lines(num_units=40, sleep_s=0.2), store_url, workers=0)
        status = read_status(store_url)
        assert status.num_done >= 1 and [lock.owner.pid for lock in status.locks] == [driver.pid]
    finally:
        signal_quietly(-driver.pid, signal.SIGKILL)
        driver.communicate()


def test_a_suspended_driver_that_wakes_after_a_takeover_does_no_harm(store_url: str) -> None:
    stage = Noise(num_units=16, sleep_s=0.05)
    timing = LockTiming(beat_s=0.2, stale_s=1.5)
    driver = start_driver(stage, store_url, workers=0, beat_s=0.2, stale_s=1.5)
    while len(list_names(as_path(store_url) / "receipts")) < 2:
        assert driver.poll() is None
        time.sleep(0.02)
    driver.send_signal(signal.SIGSTOP)
    time.sleep(2)
    assert run_stage(stage, store_url, workers=0, timing=timing).complete
    driver.send_signal(signal.SIGCONT)
    driver.communicate()
    assert check_folder(store_url).sound


def test_a_receipt_is_put_after_the_files_that_it_vouches_for(
    store_env: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_proxy(store_env, harm_some(5, 0.1)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        run_stage(Lines(num_units=12), store_url, workers=0)
    places: dict[str, int] = {}
    for number, (method, path) in enumerate(proxy.requests):
        if method == "PUT":
            places[path.partition("?")[0].partition(f"{store_url[5:]}/")[2]] = number
    names = [f"{number:05d}" for number in range(12)]
    for name in names:
        files = [f"shards/{name}.txt", f"shards/{name}.idx"]
        assert max(places[file] for file in files) < places[f"receipts/{name}.json"]
    assert max(places[f"receipts/{name}.json"] for name in names) < places["manifest.json"]
