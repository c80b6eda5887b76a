"""Tasks of other machines, as far as their locks show them, and a clock to be pushed by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from shardmill.running.lock import task_lock_name, this_process


class Clock:
    """A clock that stands until it is pushed."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def write_lock(locks_dir: Path, token: str, *, beat: int, place: str = "elsewhere") -> None:
    """Write the lock of a task with its counter at `beat`."""
    owner = replace(this_process(token), beat=beat, place=place)
    (locks_dir / f"{task_lock_name(token)}.json").write_text(json.dumps(asdict(owner)))
