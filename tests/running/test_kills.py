"""SIGKILL at random moments, with changing numbers of workers: the bytes are always the same.

SHARDMILL_KILLS sets how many kills, and SHARDMILL_SEED which.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from drivers import children_of, signal_quietly, snapshot, start_driver
from stages_for_tests import Lines, Noise

from shardmill.model.codec import to_plain
from shardmill.running.runner import run_stage
from shardmill.running.status import read_status
from shardmill.shards.ledger import open_manifest
from shardmill.stages.check.folder import check_folder

NUM_KILLS = int(os.environ.get("SHARDMILL_KILLS", "60"))
SEED = int(os.environ.get("SHARDMILL_SEED", "0"))
STAGE = Lines(num_units=48, num_samples=5, sleep_s=0.02)


def kill_something(stage: Lines, out: Path, rng: random.Random) -> int:
    """Run a driver for a random while, kill it or its workers, and return the number of kills."""
    driver = start_driver(stage, out, workers=rng.choice([0, 1, 2, 3]), retries=1000)
    wait_a_while(out, driver, rng)
    num_kills = 0
    target = rng.choice(["group", "driver", "workers"])
    if target == "workers":
        for _ in range(rng.randint(1, 6)):
            workers = children_of(driver.pid)
            if workers:
                signal_quietly(rng.choice(workers), signal.SIGKILL)
                num_kills += 1
            time.sleep(rng.uniform(0.0, 0.15))
    if driver.poll() is None:
        num_kills += 1
        signal_quietly(driver.pid if target == "driver" else -driver.pid, signal.SIGKILL)
    driver.communicate()
    return num_kills


def wait_a_while(out: Path, driver: subprocess.Popen[bytes], rng: random.Random) -> None:
    """Wait for a few more receipts, however slow this machine is; or only for the start."""
    num_wanted = len(list(out.glob("receipts/*"))) + rng.choice([0, 1, 1, 2, 4, 8])
    while driver.poll() is None and len(list(out.glob("receipts/*"))) < num_wanted:
        time.sleep(0.002)
    time.sleep(rng.choice([0.0, 0.0, 0.01, 0.05, 0.3]) * rng.random())


def test_a_killed_run_ends_in_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    run_stage(STAGE, tmp_path / "calm", workers=0)
    calm = snapshot(tmp_path / "calm")
    num_kills = num_folders = 0
    while num_kills < NUM_KILLS:
        out = tmp_path / f"killed-{num_folders}"
        num_folders += 1
        while not (out / "manifest.json").exists() and num_kills < NUM_KILLS:
            num_kills += kill_something(STAGE, out, rng)
        report = run_stage(STAGE, out, workers=2)
        assert snapshot(out) == calm
        assert open_manifest(out).num_in == 48 * 5
        if report.num_done:
            assert list((out / ".draft").iterdir()) == []
            assert list((out / "locks").iterdir()) == []


def test_files_of_different_tries_are_never_mixed(tmp_path: Path) -> None:
    stage, out = Noise(num_units=48, sleep_s=0.01), tmp_path / "out"
    rng, num_kills = random.Random(SEED), 0
    while num_kills < NUM_KILLS // 5 and not (out / "manifest.json").exists():
        num_kills += kill_something(stage, out, rng)
        if (out / "stage.json").exists():
            assert check_folder(out).broken_units == ()
    assert run_stage(stage, out, workers=2).complete
    assert check_folder(out).sound


@pytest.mark.parametrize(
    ("last", "stride"),
    [
        pytest.param("00001", 1, id="a run, after the last receipt"),
        pytest.param("", 9, id="a task, at some steps"),
        pytest.param("", 1, id="a task, at every step", marks=pytest.mark.cluster),
    ],
)
def test_a_finished_folder_is_clean_wherever_a_run_was_killed(
    tmp_path: Path, last: str, stride: int
) -> None:
    stage = Lines(num_units=2)
    run_stage(stage, tmp_path / "calm", workers=0)
    calm = snapshot(tmp_path / "calm")
    words = {
        "stage": to_plain(stage),
        "out": str(tmp_path / "out"),
        "planned": str(tmp_path / "calm"),
        "last": last,
        "first": SEED % stride,
        "stride": stride,
    }
    script = Path(__file__).parents[1] / "support" / "die_after.py"
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    folders = sorted((tmp_path / "out").iterdir())
    assert len(folders) > 20 // stride
    for out in folders:
        assert snapshot(out) == calm, out
        assert not any(path for name in ("locks", ".draft") for path in (out / name).iterdir()), out
        assert not (out / "claims").exists()
        assert read_status(out).complete and read_status(out).num_failed == 0
