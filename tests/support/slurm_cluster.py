"""A real SLURM on this machine: munge, a controller, and virtual nodes of one processor each.

Partition `preempt` is the default; a job in `high` preempts and requeues one there.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
MUNGE_DIR = Path("/run/munge")
CONFIG = """
ClusterName=mill
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
MinJobAge=10
SlurmdTimeout=10
MaxArraySize={max_array_size}
SchedulerParameters=sched_interval=2,bf_interval=2,default_queue_depth=200,sched_min_interval=200000
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n[1-{num_nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] \
CPUs={cpus} RealMemory={memory_mb} Gres=gpu:2
PartitionName=preempt Nodes=n[1-{num_nodes}] Default=YES PriorityTier=1 State=UP
PartitionName=high Nodes=n[1-{num_nodes}] PriorityTier=10 State=UP
"""


def missing_programs() -> list[str]:
    """Return what must be installed (slurm-wlm, munge) and is not; or why it cannot run."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return missing if os.geteuid() == 0 else [*missing, "root"]


@dataclass(slots=True)
class SlurmCluster:
    """A running cluster; `env` is what its commands need."""

    folder: Path
    num_nodes: int
    env: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf_path(self) -> str:
        """Its slurm.conf."""
        return self.env["SLURM_CONF"]

    def start(self, name: str) -> None:
        """Start the controller or a node: slurmctld, n1, n2, ..."""
        words = ["slurmctld", "-D"] if name == "slurmctld" else ["slurmd", "-D", "-N", name]
        self.daemons[name] = subprocess.Popen(
            [*words, "-f", self.conf_path],
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self, name: str) -> None:
        """Kill a daemon, and with a node all that runs on it."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()
        for pid in self.pids_on(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids_on(self, node: str) -> list[int]:
        """Return the processes of jobs on a node; those who would report their end come first."""
        marks = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={self.conf_path}".encode()}
        guards, jobs = set(), []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if marks <= set((path / "environ").read_bytes().split(b"\0")):
                    jobs.append(int(path.name))
                    parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                    if "slurmstepd" in Path(f"/proc/{parent}/cmdline").read_text():
                        guards.add(int(parent))
        return [*guards, *jobs]

    def call(self, *words: str) -> str:
        """Run a command of SLURM and return what it prints."""
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, check=True)
        return done.stdout

    def wait_idle(self, nodes: Sequence[str], timeout_s: float = 60) -> None:
        """Wait until nodes can take jobs."""
        deadline = time.monotonic() + timeout_s
        wanted = set(nodes)
        while wanted:
            with suppress(subprocess.CalledProcessError):
                lines = self.call("sinfo", "-h", "-N", "-o", "%N %t").split("\n")
                idle = {line.split()[0] for line in lines if line.endswith(("idle", "mix"))}
                wanted -= idle
            if wanted and time.monotonic() > deadline:
                raise AssertionError(f"nodes {wanted} are not up: {self.folder}")
            time.sleep(0.2)

    def heal(self, timeout_s: float = 180) -> None:
        """Bring back every node that is down, or that SLURM gave up after a kill."""
        deadline = time.monotonic() + timeout_s
        names = [f"n{i + 1}" for i in range(self.num_nodes)]
        while True:
            for name in ("slurmctld", *names):
                if name not in self.daemons or self.daemons[name].poll() is not None:
                    self.start(name)
            with suppress(AssertionError):
                self.wait_idle(names, timeout_s=5)
                return
            for name in names:
                with suppress(subprocess.CalledProcessError):
                    self.call("scontrol", "update", f"NodeName={name}", "State=RESUME")
            assert time.monotonic() < deadline, f"the nodes do not come back: {self.folder}"

    def wait_answer(self, timeout_s: float = 60) -> None:
        """Wait until the controller answers."""
        deadline = time.monotonic() + timeout_s
        while subprocess.run(["squeue"], env=self.env, capture_output=True).returncode != 0:
            assert time.monotonic() < deadline, f"no controller: {self.folder}"
            time.sleep(0.2)

    def jobs(self) -> list[str]:
        """Return the ids of what is in the queue."""
        return self.call("squeue", "-h", "-r", "-o", "%i %t %N").splitlines()


@contextmanager
def slurm_cluster(
    folder: Path,
    *,
    num_nodes: int = 2,
    cpus: int = 1,
    memory_mb: int = 2000,
    max_array_size: int = 1001,
) -> Iterator[SlurmCluster]:
    """Start a cluster and yield it once its nodes are up; end everything that it started.

    What a node has (also its two GPUs) is only what SLURM believes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").mkdir(exist_ok=True)
    started_munge = _start_munge()
    ports = _free_ports(num_nodes + 1)
    conf = folder / "slurm.conf"
    conf.write_text(
        CONFIG.format(
            host=socket.gethostname(),
            folder=folder,
            port=ports[-1],
            first=ports[0],
            last=ports[num_nodes - 1],
            num_nodes=num_nodes,
            max_array_size=max_array_size,
            cpus=cpus,
            memory_mb=memory_mb,
        )
    )
    for number in (0, 1):
        (folder / f"gpu{number}").touch()
    gpus = f"NodeName=n[1-{num_nodes}] Name=gpu File={folder}/gpu[0-1]\n"
    conf.with_name("gres.conf").write_text(gpus)
    cluster = SlurmCluster(folder, num_nodes, {**os.environ, "SLURM_CONF": str(conf)})
    names = [f"n{i + 1}" for i in range(num_nodes)]
    try:
        for name in ("slurmctld", *names):
            cluster.start(name)
        cluster.wait_idle(names)
        yield cluster
    finally:
        for name in list(cluster.daemons):
            cluster.kill(name)
        if started_munge is not None:
            started_munge.terminate()
            started_munge.wait()


def _start_munge() -> subprocess.Popen[bytes] | None:
    """Start munged unless one answers; return it if it is ours to end."""
    if subprocess.run(["munge", "-n"], capture_output=True).returncode == 0:
        return None
    MUNGE_DIR.mkdir(exist_ok=True)
    shutil.chown(MUNGE_DIR, "munge", "munge")
    daemon = subprocess.Popen(
        ["runuser", "-u", "munge", "--", "munged", "--foreground", "--force"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while subprocess.run(["munge", "-n"], capture_output=True).returncode != 0:
        if time.monotonic() > deadline:
            raise AssertionError("munged does not start")
        time.sleep(0.1)
    return daemon


def _free_ports(count: int) -> list[int]:
    """Return neighbouring ports that nobody listens on."""
    for first in range(17001 + (os.getpid() % 400) * 20, 60000, 20):
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return list(range(first, first + count))
    raise AssertionError("no free ports")
