"""Driver processes for tests, and what a folder holds once they are done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardmill.model.codec import to_plain

PRIVATE = {"events", "locks", ".draft"}


def start_driver(stage: Any, out: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a driver as the leader of its own process group; its workers are in the group."""
    words = json.dumps({"stage": to_plain(stage), "out": str(out), **options})
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("drive.py")), words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def snapshot(out: Path) -> dict[str, bytes]:
    """Return every file of a folder by its path, except what is private to a run."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.relative_to(out).parts[0] not in PRIVATE
    }


def children_of(pid: int) -> list[int]:
    """Return the process ids of a process's children, or none if it is gone."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        words = [word for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return [int(word) for word in words]


def is_alive(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def signal_quietly(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
