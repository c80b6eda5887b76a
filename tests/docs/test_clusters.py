"""The page of clusters, word for word, on a real SLURM and a real Ray cluster, with preemption."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ray_nodes import ray_cluster
from slurm_cluster import SlurmCluster, missing_programs, slurm_cluster

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"^# ?([\w./-]+\.\w+)\n")
PAGE = ROOT / "docs" / "clusters.md"


def run_page(folder: Path, env: dict[str, str]) -> list[str]:
    """Run every block of the page in a folder, and return what the commands printed."""
    shutil.copytree(ROOT / "demo" / "data", folder / "demo" / "data")
    printed = []
    for language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        named = FILE_NAME.match(text)
        if named:
            (folder / named[1]).write_text(text[named.end() :], encoding="utf-8")
        elif language in ("bash", "sh"):
            command = ["bash", "-euo", "pipefail", "-c", text]
            ran = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
            printed.append(ran.stdout)
    return printed


def preempt_once(cluster: SlurmCluster, out: Path) -> None:
    """Take both nodes away for a moment, once the array is at work."""
    deadline = time.monotonic() + 300
    while not list(out.glob("claims/*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(2):
        cluster.call("sbatch", "-p", "high", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3")


@pytest.mark.cluster
@pytest.mark.skipif(bool(missing_programs()), reason=f"without {missing_programs()}")
def test_every_recipe_runs_on_real_schedulers(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    big = {"cpus": 8, "memory_mb": 64_000}
    with slurm_cluster(tmp_path / "slurm", **big) as slurm, ray_cluster(1, 1, gpus=1) as ray:
        folder = tmp_path / "work"
        folder.mkdir()
        search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = {**slurm.env, "PATH": search, "RAY_ADDRESS": ray.address, "SHARDMILL_THREADS": "1"}
        intruder = threading.Thread(target=preempt_once, args=(slurm, folder / "codes"))
        intruder.start()
        printed = run_page(folder, env)
        intruder.join()
    assert any("#SBATCH --array=0-100%25" in text for text in printed)
    assert "has been requeued" in (slurm.folder / "slurmctld.log").read_text(), "no preemption"
