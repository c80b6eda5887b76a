"""A worker whose parent is killed before it has started ends as well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

SCRIPT = """
import multiprocessing, os, sys, time
from shardmill.train.loader import EndWithParent

def work(number):
    time.sleep(1.0)  # the parent dies meanwhile
    EndWithParent(lambda worker: print("began", worker, flush=True))(number)
    time.sleep(600)

if __name__ == "__main__":
    for number in range(2):
        process = multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(number,))
        process.start()
        print(process.pid, flush=True)
    time.sleep(600)
"""


def test_workers_end_with_a_parent_that_died_before_they_began() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "fork"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    workers = [psutil.Process(pid) for pid in pids]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 60
    while any(w.is_running() and w.status() != "zombie" for w in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
