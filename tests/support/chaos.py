"""Faults in a seeded order, and how many units each of them may cost.

A scene is an engine at work on one folder. It knows which faults can befall it; each returns how
many units may be begun once more because of it: those that the struck processes had begun and not
yet committed, at most `HELD` of each.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from drivers import children_of, signal_quietly, start_driver
from ray_nodes import kill_head, worker_pids
from slurm_cluster import SlurmCluster
from start_task import start_task

from shardmill.model.codec import to_plain
from shardmill.running.ray import Ray
from shardmill.running.slurm import Slurm, TaskShape

# The one at work, and those whose commit was on its way.
HELD = 3
Fault = Callable[[], int]


class Scene:
    """Processes that work on `out`, and what can happen to them."""

    def __init__(self, out: Path, rng: random.Random) -> None:
        self.out, self.rng = out, rng
        self.processes: list[subprocess.Popen[bytes]] = []
        self.struck: Counter[str] = Counter()

    def faults(self) -> list[Fault]:
        """Return what can happen."""
        return [self.kill_worker, self.kill_driver, self.suspend, self.terminate, self.lose_power]

    def strike(self) -> int:
        """Wait for some progress, and let something happen."""
        self.await_progress(self.rng.choice([0, 1, 2, 4, 8]))
        fault = self.rng.choice(self.faults())
        self.struck[fault.__name__.replace("_", " ")] += 1
        return fault()

    def await_progress(self, count: int, timeout_s: float = 30) -> None:
        """Wait for more receipts, or until all is over."""
        wanted, deadline = self.num_done() + count, time.monotonic() + timeout_s
        while self.num_done() < wanted and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(self.rng.choice([0.0, 0.01, 0.1]) * self.rng.random())

    def num_done(self) -> int:
        """Return how many units have a receipt."""
        return len(list(self.out.glob("receipts/*")))

    def is_alive(self) -> bool:
        """Say whether anybody works."""
        return any(process.poll() is None for process in self.processes)

    def kill_worker(self) -> int:
        """Kill the worker of some process."""
        workers = children_of(self.victim().pid)
        if workers:
            signal_quietly(self.rng.choice(workers), signal.SIGKILL)
        return HELD

    def kill_driver(self) -> int:
        """Kill a driver or task, and sometimes all that belongs to it."""
        victim = self.victim()
        num_workers = max(1, len(children_of(victim.pid)))
        signal_quietly(self.rng.choice([victim.pid, -victim.pid]), signal.SIGKILL)
        return HELD * num_workers

    def suspend(self) -> int:
        """Stop a process and its workers for so long that others take it for dead."""
        victim = self.victim()
        num_workers = max(1, len(children_of(victim.pid)))
        signal_quietly(-victim.pid, signal.SIGSTOP)
        time.sleep(self.rng.choice([0.1, 1.5]))
        signal_quietly(-victim.pid, signal.SIGCONT)
        return HELD * num_workers

    def terminate(self) -> int:
        """Ask a driver or task to end, as a scheduler does before it kills."""
        victim = self.victim()
        num_workers = max(1, len(children_of(victim.pid)))
        signal_quietly(victim.pid, signal.SIGTERM)
        return HELD * num_workers

    def lose_power(self) -> int:
        """Kill all processes with all their workers at once."""
        num_workers = sum(max(1, len(children_of(process.pid))) for process in self.processes)
        for process in self.processes:
            signal_quietly(-process.pid, signal.SIGKILL)
        return HELD * num_workers

    def victim(self) -> subprocess.Popen[bytes]:
        """Return some process."""
        return self.rng.choice(self.processes)

    def end(self) -> int:
        """End the scene and return what that may cost."""
        living = [process for process in self.processes if process.poll() is None]
        for process in self.processes:
            signal_quietly(-process.pid, signal.SIGCONT)
            signal_quietly(-process.pid, signal.SIGKILL)
            process.communicate()
        return 2 * HELD * len(living)


class DriverScene(Scene):
    """A local driver with a few workers."""

    def __init__(self, out: Path, rng: random.Random, stage: Any) -> None:
        super().__init__(out, rng)
        options = {"workers": rng.choice([1, 2]), "retries": 1000, "beat_s": 0.1, "stale_s": 1.0}
        self.processes = [start_driver(stage, out, **options)]


class TaskScene(Scene):
    """Tasks that share the units, whose clocks jump, on a disk that fills up."""

    def __init__(self, out: Path, rng: random.Random, job: Path, disk: Path | None) -> None:
        super().__init__(out, rng)
        self.disk, self.clock = disk, out.parent / f"{out.name}.clock"
        self.clock.write_text("+0")
        self.job = job
        self.processes = [start_task(job, clock=self.clock) for _ in range(2)]

    def faults(self) -> list[Fault]:
        """Return what can happen."""
        more = [self.add_task, self.jump, self.say_time_is_over]
        return super().faults() + more + ([self.fill_disk] if self.disk else [])

    def add_task(self) -> int:
        """Start one more task, which costs nothing."""
        self.processes = [process for process in self.processes if process.poll() is None]
        if len(self.processes) < 3:
            self.processes.append(start_task(self.job, clock=self.clock))
        return 0

    def victim(self) -> subprocess.Popen[bytes]:
        """Return some task; there is always one."""
        if not self.is_alive():
            self.add_task()
        return super().victim()

    def jump(self) -> int:
        """Move the time of day of all tasks, which costs nothing."""
        self.clock.write_text(self.rng.choice(["+0", "+3d", "-2d", "+1h", "-40s"]))
        return 0

    def say_time_is_over(self) -> int:
        """Tell a task that its time is nearly over, which costs nothing."""
        victim = self.victim()
        # A process that has not installed its handler yet would die of the signal.
        handled = int(_status(victim.pid).get("SigCgt", "0"), 16)
        if handled & (1 << (signal.SIGUSR1 - 1)):
            signal_quietly(victim.pid, signal.SIGUSR1)
        return 0

    def fill_disk(self) -> int:
        """Fill the disk until somebody has noticed, and make room again."""
        assert self.disk is not None
        ballast = self.disk / "ballast"
        num_tasks = len(self.processes)
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        time.sleep(self.rng.uniform(0.05, 0.5))
        ballast.unlink()
        # Each task may have tried a few before the first one stopped it.
        return 2 * HELD * num_tasks


class SlurmScene(Scene):
    """An array of SLURM, and the driver that watches it."""

    def __init__(self, out: Path, rng: random.Random, stage: Any, cluster: SlurmCluster) -> None:
        super().__init__(out, rng)
        self.cluster, self.stage = cluster, stage
        self.engine = Slurm(tasks=2, task=TaskShape(partition="preempt"), poll_s=0.5)
        self.watch()

    def watch(self) -> int:
        """Start the driver if there is none; one that died costs nothing."""
        if not self.is_alive():
            options = {"on": to_plain(self.engine), "retries": 1000}
            self.processes = [start_driver(self.stage, self.out, **options)]
        return 0

    def faults(self) -> list[Fault]:
        """Return what can happen."""
        return [self.kill_watcher, self.kill_task, self.cancel, self.preempt, self.kill_node,
                self.kill_controller, self.watch]  # fmt: skip

    def kill_watcher(self) -> int:
        """Kill the driver: the tasks do not notice."""
        signal_quietly(-self.victim().pid, signal.SIGKILL)
        self.victim().communicate()
        return self.watch()

    def kill_task(self) -> int:
        """Kill a process of a task, the worker or the task itself."""
        pids = self.cluster.pids_on(self.rng.choice(["n1", "n2"]))
        if pids:
            signal_quietly(pids[-1], signal.SIGKILL)
        return HELD

    def cancel(self) -> int:
        """Cancel a task that runs."""
        # A controller that is too busy to answer cancels nobody.
        with suppress(subprocess.CalledProcessError):
            running = [line.split()[0] for line in self.cluster.jobs() if " R " in line]
            if running:
                self.cluster.call("scancel", self.rng.choice(running))
        return HELD

    def preempt(self) -> int:
        """Let somebody more important take a node for a second."""
        words = ["sbatch", "-p", "high", "-o", "/dev/null", "--wrap", "sleep 1"]
        with suppress(subprocess.CalledProcessError):
            self.cluster.call(*words)
        return HELD

    def kill_node(self) -> int:
        """Kill a node with all that runs on it, and start it again."""
        node = self.rng.choice(["n1", "n2"])
        self.cluster.kill(node)
        time.sleep(self.rng.choice([0.0, 1.0]))
        self.cluster.start(node)
        return HELD

    def kill_controller(self) -> int:
        """Kill the controller and start it again, which costs nothing."""
        self.cluster.kill("slurmctld")
        time.sleep(self.rng.choice([0.0, 2.0]))
        self.cluster.start("slurmctld")
        self.cluster.wait_answer()
        return 0

    def end(self) -> int:
        """Cancel everything."""
        super().end()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with suppress(subprocess.CalledProcessError):
                if not self.cluster.jobs():
                    break
                self.cluster.call("scancel", "-u", "root")
            time.sleep(0.5)
        return 2 * HELD


class RayScene(Scene):
    """A Ray cluster and its driver."""

    def __init__(self, out: Path, rng: random.Random, stage: Any, cluster: Any) -> None:
        super().__init__(out, rng)
        self.cluster, self.stage, self.has_head = cluster, stage, True
        self.drive()

    def drive(self) -> None:
        """Start a driver."""
        options = {"on": to_plain(Ray(address=self.cluster.address)), "retries": 1000}
        self.processes = [start_driver(self.stage, self.out, **options)]

    def faults(self) -> list[Fault]:
        """Return what can happen; without a head nothing more."""
        return [self.kill_actor, self.kill_actor, self.replace_node, self.replace_driver]

    def kill_actor(self) -> int:
        """Kill an actor."""
        pids = worker_pids(self.cluster)
        if pids:
            signal_quietly(self.rng.choice(pids), signal.SIGKILL)
        return HELD

    def replace_node(self) -> int:
        """Kill a node and add another."""
        nodes = sorted(self.cluster.worker_nodes, key=lambda node: node.unique_id)
        self.cluster.remove_node(self.rng.choice(nodes), allow_graceful=False)
        self.cluster.add_node(num_cpus=1)
        return HELD

    def replace_driver(self) -> int:
        """Kill the driver and start another."""
        self.processes[0].kill()
        self.processes[0].communicate()
        self.drive()
        return 2 * HELD

    def kill_head(self) -> int:
        """Kill the head, and wait for the driver's last words."""
        kill_head(self.cluster)
        _, errors = self.processes[0].communicate(timeout=120)
        assert self.processes[0].returncode == 0 or b"gone away" in errors, errors
        return 2 * HELD


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def mount_small_disk(folder: Path, num_mb: int) -> bool:
    """Put a small file system at `folder`; return whether that is allowed here."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={num_mb}m", "tmpfs", str(folder)]
    return os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
