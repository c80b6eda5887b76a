"""Makes the plan of one epoch; by itself, a process: LIKE LENGTHS EPOCH PATH.

It ends when its input does, so that it does not outlive the process that started it.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

from shardmill.io.plans import open_plan, write_plan
from shardmill.io.tokenlengths import read_lengths
from shardmill.pack.plan import plan_packs
from shardmill.remote.path import as_path

NICE = 10


def make_plan(like: Path, lengths: Path, epoch: int, path: Path) -> None:
    """Put the plan of an epoch at `path`, whole or not at all."""
    first, table = open_plan(like), read_lengths(lengths)
    first.check_table(table)
    write_plan(path, plan_packs(table, replace(first.spec, epoch=epoch)))


def _end_with_parent() -> None:
    os.read(0, 1)  # not sys.stdin, whose lock would be in the way at the end
    os._exit(1)


if __name__ == "__main__":
    os.nice(NICE)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    make_plan(as_path(sys.argv[1]), as_path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
