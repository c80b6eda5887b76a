"""`python start_task.py JOB`: a task with quick heartbeats, for tests to disturb."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from shardmill.errors import ShardmillError
from shardmill.running.engine import read_job
from shardmill.running.lock import LockTiming
from shardmill.running.task import run_task
from shardmill.storage.path import as_path

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


def start_task(job: Path, *, clock: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a task as the leader of a process group; the file `clock` says how wrong its clock is.

    Only the time of day is faked, as a jump of a real clock leaves the monotonic one alone.
    """
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    if clock is not None and FAKETIME.exists():
        env |= {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
    return subprocess.Popen(
        [sys.executable, __file__, str(job)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )


def main() -> None:
    # Only for the task, which keeps the lock and watches others: sleeping fails under it.
    os.environ.pop("LD_PRELOAD", None)
    timing = LockTiming(beat_s=0.1, stale_s=1.0)
    try:
        report = run_task(read_job(as_path(sys.argv[1])), workers=1, timing=timing)
    except ShardmillError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{report.run.num_done} {report.num_left} {report.out_of_time}")


if __name__ == "__main__":
    main()
