"""The number of processors comes from affinity and cgroups, tightest limit first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardmill.machine import count_cpus


@pytest.fixture(autouse=True)
def sixteen_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def put(root: Path, path: str, content: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


def test_without_cgroups_affinity_counts(tmp_path: Path) -> None:
    assert count_cpus(tmp_path) == 16


@pytest.mark.parametrize(
    ("quota", "count"),
    [("max 100000", 16), ("200000 100000", 2), ("250000 100000", 3), ("5000 100000", 1)],
)
def test_version_2_quota(tmp_path: Path, quota: str, count: int) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/job/step\n")
    put(tmp_path, "sys/fs/cgroup/job/step/cpu.max", quota)
    assert count_cpus(tmp_path) == count


def test_version_2_quota_of_a_parent_counts(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/job/step\n")
    put(tmp_path, "sys/fs/cgroup/job/cpu.max", "400000 100000")
    put(tmp_path, "sys/fs/cgroup/job/step/cpu.max", "max 100000")
    assert count_cpus(tmp_path) == 4


@pytest.mark.parametrize(("quota", "count"), [("-1", 16), ("300000", 3)])
@pytest.mark.parametrize("folder", ["sys/fs/cgroup/cpu/job", "sys/fs/cgroup/cpu"])
def test_version_1_quota(tmp_path: Path, folder: str, quota: str, count: int) -> None:
    put(tmp_path, "proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/job\n1:name=systemd:/y\n")
    put(tmp_path, f"{folder}/cpu.cfs_quota_us", quota)
    put(tmp_path, f"{folder}/cpu.cfs_period_us", "100000")
    assert count_cpus(tmp_path) == count


def test_it_counts_on_this_machine() -> None:
    assert count_cpus() >= 1
