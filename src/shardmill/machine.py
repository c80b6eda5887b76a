"""How many processors this process may really use: affinity and cgroup quota, not the machine's."""

from __future__ import annotations

import os
from pathlib import Path


def count_cpus(root: Path = Path("/")) -> int:
    """Return the number of usable processors, at least 1."""
    quotas = [quota for quota in (_quota_v2(root), _quota_v1(root)) if quota is not None]
    # A quota of 2.5 processors keeps three workers busy most of the time; round up.
    return max(1, min([_count_allowed(), *(int(-(-quota // 1)) for quota in quotas)]))


def _count_allowed() -> int:
    """Return how many processors the scheduler lets this process run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota_v2(root: Path) -> float | None:
    """Return the tightest `cpu.max` ("200000 100000" is 2) from this cgroup up to the top."""
    mount = root / "sys/fs/cgroup"
    group = mount / _group_path(root, "")
    quotas = []
    for folder in [group, *group.parents]:
        quotas += _read_max(folder / "cpu.max")
        if folder == mount:
            break
    return min(quotas, default=None)


def _read_max(path: Path) -> list[float]:
    words = _read(path).split()
    return [int(words[0]) / int(words[1])] if len(words) == 2 and words[0] != "max" else []


def _quota_v1(root: Path) -> float | None:
    mount = root / "sys/fs/cgroup/cpu"
    for folder in (mount / _group_path(root, "cpu"), mount):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota and period:
            return int(quota) / int(period) if int(quota) > 0 else None
    return None


def _group_path(root: Path, controller: str) -> str:
    """Return this process's cgroup, from lines such as '0::/user.slice' or '4:cpu,cpuacct:/job'."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
