"""Faults of every kind in a seeded order: the bytes are those of a calm run, and no unit is done
more often than the faults explain.

SHARDMILL_FAULTS sets how many faults (the long run: 200), and SHARDMILL_SEED which. What happened
in the long runs is written as a page to SHARDMILL_FAULTS_PAGE, if that is set.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from chaos import DriverScene, RayScene, Scene, SlurmScene, TaskScene, mount_small_disk
from drivers import snapshot
from ray_nodes import ray_cluster
from slurm_cluster import missing_programs, slurm_cluster
from stages_for_tests import Lines

from shardmill.model.codec import to_plain
from shardmill.running.engine import Job, write_job
from shardmill.running.events import read_log
from shardmill.running.lock import LockTiming
from shardmill.running.runner import run_stage
from shardmill.stages.check.folder import check_folder

SEED = int(os.environ.get("SHARDMILL_SEED", "0"))
NUM_FAULTS = int(os.environ.get("SHARDMILL_FAULTS", "200"))
STAGE = Lines(num_units=60, num_samples=5, sleep_s=0.03)
SLOW_STAGE = Lines(num_units=60, num_samples=5, sleep_s=0.3)
PAGE = os.environ.get("SHARDMILL_FAULTS_PAGE")
PAGE_HEAD = f"""# The last run of faults

`make faults FAULTS={NUM_FAULTS} SEED={SEED}` wrote this page, on {os.cpu_count()} cores. What \
each fault is, and what must hold after it, is told [with the threat model](security.md#fault-runs).

| engine | faults | of which | folders | units | done again | at most | time | result |
|---|---|---|---|---|---|---|---|---|
"""
FAST = LockTiming(beat_s=0.1, stale_s=1.0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path | None]:
    """A small file system, or None where none can be made."""
    folder = tmp_path / "disk"
    mounted = mount_small_disk(folder, 4)
    yield folder if mounted else None
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Trial:
    """A folder that is disturbed until it is complete or the faults are used up."""

    def __init__(self, stage: Lines, out: Path, calm: dict[str, bytes]) -> None:
        self.stage, self.out, self._calm = stage, out, calm
        self.num_explained = self.num_extra = 0
        self.struck: Counter[str] = Counter()

    @property
    def num_faults(self) -> int:
        """How much happened."""
        return self.struck.total()

    def plan(self) -> Path:
        """Plan the folder and return the job of its tasks."""
        if not self.out.exists():
            run_stage(self.stage, self.out, workers=0, part=(1, 10**9))
        settings = {"retries": 1000, "max_skip_rate": 0.0}
        job = Job(stage=to_plain(self.stage), out_dir=str(self.out), token="", **settings)  # type: ignore[arg-type]
        return write_job(job)

    def disturb(self, scene: Scene, num_faults: int) -> None:
        """Let some things happen in a scene, and end it."""
        try:
            for _ in range(num_faults):
                if (self.out / "manifest.json").exists():
                    break
                self.num_explained += scene.strike()
        finally:
            self.struck += scene.struck
            self.num_explained += scene.end()

    def finish(self) -> None:
        """Complete the folder in peace, and compare."""
        for _ in range(2):  # the first may still find tasks that die slowly
            report = run_stage(self.stage, self.out, workers=2, retries=2, timing=FAST)
        assert report.complete
        assert self.public() == self._calm
        assert check_folder(self.out).problems == ()
        begun = self.times_begun()
        self.num_extra = begun.total() - self.stage.num_units
        explained = f"{self.num_extra} > {self.num_explained}: {begun}"
        assert self.num_extra <= self.num_explained, explained

    def public(self) -> dict[str, bytes]:
        files = snapshot(self.out)
        return {name: data for name, data in files.items() if not name.startswith("jobs/")}

    def times_begun(self) -> Counter[str]:
        logs = (self.out / "events").glob("*.jsonl")
        entries = (entry.event for log in logs for entry in read_log(log))
        return Counter(event.unit for event in entries if event.kind == "start")


def make_calm(stage: Lines, tmp_path: Path) -> dict[str, bytes]:
    """Return the bytes of an undisturbed run; how long units sleep is part of the spec."""
    run_stage(stage, tmp_path / "calm", workers=8)
    return snapshot(tmp_path / "calm")


@contextmanager
def reported(engine: str, trials: Sequence[Trial]) -> Iterator[None]:
    """Write a line of the page when all trials of an engine are over, however they ended."""
    begun_s, result = time.monotonic(), "FAILED"
    try:
        yield
        result = "all bytes as in a calm run"
    finally:
        if PAGE is not None:
            page = Path(PAGE)
            before = page.read_text("utf-8") if page.exists() else ""
            # The tests of one run add to one page; another run begins it anew.
            text = before if before.startswith(PAGE_HEAD) else PAGE_HEAD
            kinds = sum((trial.struck for trial in trials), Counter[str]())
            cells = [
                engine,
                kinds.total(),
                ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
                len(trials),
                sum(trial.stage.num_units for trial in trials),
                sum(trial.num_extra for trial in trials),
                sum(trial.num_explained for trial in trials),
                f"{(time.monotonic() - begun_s) / 60:.1f} min",
                result,
            ]
            kept = [line for line in text.splitlines() if not line.startswith(f"| {engine} |")]
            kept.append(f"| {' | '.join(map(str, cells))} |")
            page.write_text("\n".join(kept) + "\n", "utf-8")


def run_trials(
    stage: Lines,
    folder: Path,
    num_faults: int,
    scene: Callable[[Trial], Scene],
    trials: list[Trial],
) -> None:
    """Disturb one folder after the other until there were enough faults."""
    calm = make_calm(stage, folder.parent)
    while sum(trial.num_faults for trial in trials) < num_faults:
        trial = Trial(stage, folder / f"out-{len(trials)}", calm)
        trials.append(trial)
        while not (trial.out / "manifest.json").exists() and trial.num_faults < num_faults:
            trial.disturb(scene(trial), 6)
        trial.finish()
        shutil.rmtree(trial.out)


def run_local_chaos(
    tmp_path: Path, disk: Path | None, num_faults: int, trials: list[Trial]
) -> None:
    rng = random.Random(SEED)

    def scene(trial: Trial) -> Scene:
        if rng.random() < 0.3:
            return DriverScene(trial.out, rng, STAGE)
        return TaskScene(trial.out, rng, trial.plan(), disk)

    run_trials(STAGE, disk or tmp_path, num_faults, scene, trials)


def test_a_short_chaos_of_tasks_and_drivers(tmp_path: Path, disk: Path | None) -> None:
    run_local_chaos(tmp_path, disk, 16, [])


@pytest.mark.cluster
@pytest.mark.timeout(12 * 3600)
def test_a_long_chaos_of_tasks_and_drivers(tmp_path: Path, disk: Path | None) -> None:
    trials: list[Trial] = []
    with reported("drivers and tasks", trials):
        run_local_chaos(tmp_path, disk, NUM_FAULTS // 2, trials)


@pytest.mark.cluster
@pytest.mark.timeout(12 * 3600)
@pytest.mark.skipif(bool(missing_programs()), reason=f"without {missing_programs()}")
def test_a_chaos_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED)
    with slurm_cluster(tmp_path / "slurm") as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.conf_path)
        (tmp_path / "work").mkdir()

        def scene(trial: Trial) -> Scene:
            cluster.heal()
            return SlurmScene(trial.out, rng, SLOW_STAGE, cluster)

        trials: list[Trial] = []
        with reported("SLURM", trials):
            run_trials(SLOW_STAGE, tmp_path / "work", NUM_FAULTS // 4, scene, trials)


@pytest.mark.cluster
@pytest.mark.timeout(12 * 3600)
def test_a_chaos_of_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    rng = random.Random(SEED)
    calm = make_calm(SLOW_STAGE, tmp_path)
    trials: list[Trial] = []
    with reported("Ray", trials):
        while sum(trial.num_faults for trial in trials) < NUM_FAULTS // 4:
            trial = Trial(SLOW_STAGE, tmp_path / f"out-{len(trials)}", calm)
            trials.append(trial)
            with ray_cluster(1, 1) as cluster:
                scene = RayScene(trial.out, rng, SLOW_STAGE, cluster)
                trial.disturb(scene, 5)
                scene.drive()
                scene.await_progress(2)
                trial.num_explained += scene.kill_head() + scene.end()
                trial.struck["kill head"] += 1
            trial.finish()
