"""How many processors this process may really use, and how it starts others like itself.

A worker notes what it reads where its driver can see it: a file can crash the library that reads
it, and who dies so says nothing any more.

Python looks for modules first where it was started, which may be a folder of data: a file there
that is named like a module would run. No process that is started here looks there.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any


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


NOTE_BYTES = 4096
_note: mmap.mmap | None = None


def open_note() -> int:
    """Return the descriptor of an empty note, which the process inherits that shall write it."""
    with tempfile.TemporaryFile() as file:
        file.truncate(NOTE_BYTES)
        return os.dup(file.fileno())


def write_notes(descriptor: int) -> None:
    """Let `note` write here from now on; this process may die by what it reads."""
    global _note
    _note = mmap.mmap(descriptor, NOTE_BYTES)
    os.close(descriptor)


def may_die() -> bool:
    """Whether a crash of this process costs what it is at, and not a whole run."""
    return _note is not None


def note(what: str) -> None:
    """Note what is being read, in a process that writes notes."""
    if _note is not None:
        content = what.encode("utf-8", "replace")[: NOTE_BYTES - 1] + b"\0"
        _note[: len(content)] = content


def read_note(descriptor: int) -> str:
    """Return what the other process noted last."""
    content = os.pread(descriptor, NOTE_BYTES, 0).partition(b"\0")[0]
    return content.decode("utf-8", "replace")


def python_module(name: str) -> list[str]:
    """Return the command that runs a module of ours, to be run with `python_environ`."""
    return [sys.executable, "-P", "-m", name]


def python_environ() -> dict[str, str]:
    """Return the environment for processes of ours."""
    # "PYTHONPATH=:/code" has an empty entry, which means the working folder.
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


class SafeProcess(SpawnProcess):
    """A process of `multiprocessing` that does not look for modules in the working folder."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _safe_environ():
            return SpawnProcess._Popen(process_obj)


class SafeContext(SpawnContext):
    """The way to spawn a `SafeProcess`."""

    Process = SafeProcess


def spawn_context() -> SpawnContext:
    """Return the context in which `multiprocessing` starts processes of ours."""
    with _safe_environ():
        resource_tracker.ensure_running()  # a process as well, which the first lock would start
    return SafeContext()


@contextmanager
def environment(values: Mapping[str, Any]) -> Iterator[None]:
    """Set variables for what is started and asked inside; None leaves one as it is."""
    given = {name: str(value) for name, value in values.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _safe_environ() -> AbstractContextManager[None]:
    """Have what is started meanwhile by `multiprocessing`, which takes no flags, start safely."""
    return environment({"PYTHONPATH": python_environ()["PYTHONPATH"], "PYTHONSAFEPATH": "1"})
