"""`python die_after.py '{"stage": ..., "out": ..., "last": ...}'`: kills after the last receipt.

Each run has a folder of its own, `out/N`, and is killed at the Nth look at or change of a file
after the rename that gives the unit `last` its receipt, until one lives to the end. The folder
holds, before that, what killed runs may have left. After a kill the same run is begun once more.

With "tasks" the run is a task of an array, killed at every "stride"-th step from its beginning on;
another task, which must find out that the first is dead, does the rest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardmill.model.codec import from_plain, to_plain
from shardmill.running import task
from shardmill.running.engine import Job
from shardmill.running.lock import LockTiming
from shardmill.running.runner import run_stage
from shardmill.running.worker import work_job
from shardmill.shards.ledger import FOLDERS

STEPS = ("open", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir")
LEFT = ("claims/00000.1", "failures/00000.json", "earlier/00001.json", ".index.0123456789abcdef")


class WorkHere:
    """In place of a task's pool: its units are worked in this process, so that all steps are."""

    def __init__(
        self,
        job: Job,
        _units: object,
        _spawner: object,
        *,
        on_event: Any,
        should_stop: Any,
        more: Any,
    ) -> None:
        self.job, self.on_event, self.should_stop, self.more = job, on_event, should_stop, more

    def run(self) -> None:
        work_job(self.job, self.job.load_stage(), self.units(), self.on_event)

    def units(self) -> Iterator[Any]:
        while not self.should_stop():
            found = self.more.take(1)
            yield from found
            if not found and not self.more.is_waiting():
                return


def run(stage: Any, out: Path, last: str, steps_to_live: int | None) -> None:
    """Run the stage in this process; with a number of steps it is killed after so many."""
    left = None if last else steps_to_live

    def maybe_die(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if left is not None and event in STEPS:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        if last and event == "os.rename" and str(args[1]).endswith(f"receipts/{last}.json"):
            left = steps_to_live

    sys.addaudithook(maybe_die)
    if last:
        assert run_stage(stage, out, workers=0).complete
        return
    task.WorkerPool, task.LOOK_PAUSE_S = WorkHere, 0.02  # type: ignore[assignment,misc]
    job = Job(stage=to_plain(stage), out_dir=str(out), token="", retries=0, max_skip_rate=0.0)
    report = task.run_task(job, workers=1, timing=LockTiming(beat_s=0.02, stale_s=0.2))
    assert report.run.complete and report.num_left == 0


def survives(stage: Any, out: Path, last: str, steps_to_live: int | None) -> bool:
    """Run the stage in a process of its own, and say whether it lived to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(stage, out, last, steps_to_live)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        sys.exit(1)
    return not os.WIFSIGNALED(status)


def main() -> None:
    options = json.loads(sys.argv[1])
    stage, steps, is_over = from_plain(options["stage"], trusted=True), options["first"], False
    while not is_over:
        out = Path(options["out"]) / f"{steps}"
        for folder in (*FOLDERS, "claims"):
            (out / folder).mkdir(parents=True)
        (out / "stage.json").write_bytes(Path(options["planned"], "stage.json").read_bytes())
        for name in ("units.jsonl", "inputs.json"):
            (out / name).write_bytes(Path(options["planned"], name).read_bytes())
        # A task takes a failure for one of its own array, and leaves the unit to the next command.
        for name in LEFT if options["last"] else LEFT[:1]:
            (out / name).write_text("{}")
        is_over = survives(stage, out, options["last"], steps)
        assert is_over or survives(stage, out, options["last"], None)
        steps += options["stride"]


if __name__ == "__main__":
    main()
