"""The driver while SLURM's tasks work: it tells what they do, and submits again what is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shardmill.errors import ShardmillError
from shardmill.model.stage import Unit
from shardmill.remote.path import UrlPath
from shardmill.run.engine import Errand
from shardmill.run.events import Event
from shardmill.run.jobfile import job_path
from shardmill.run.slurm_queue import QueueState, cancel_waiting, read_queue
from shardmill.run.tail import LogTail

LOG_TAIL_BYTES = 2000
TAIL_PAUSE_S = 1.0
REST_WAIT_S = 5.0


class SlurmWatch:
    """Waits for the tasks of jobs."""

    def __init__(
        self,
        errand: Errand,
        job_ids: Sequence[str],
        submit: Callable[[Errand], list[str]],
        *,
        poll_s: float,
    ) -> None:
        self._errand, self._job_ids, self._submit = errand, job_ids, submit
        self._poll_s = poll_s
        self._ledger = errand.job.ledger
        self._tail = LogTail(self._ledger.out_dir / "events", own_token=self._ledger.token)
        self._untold = {unit.name for unit in errand.units}
        self._said = ""

    def run(self) -> None:
        """Return when nothing is left to do but what failed, or when told to stop."""
        num_before = len(self._errand.units)
        while not self._errand.should_stop():
            if self._is_over():
                left = self._left()
                if not left:
                    cancel_waiting(self._job_ids)
                    self._tell_rest()
                    return
                # Their time was over, or they were cancelled. Again, as long as it helps.
                if len(left) == num_before:
                    raise ShardmillError(self._complaint(len(left)))
                num_before = len(left)
                self._job_ids = self._submit(replace(self._errand, units=left))
            self._sleep()

    def _is_over(self) -> bool:
        if not self._left():
            return True
        queue = read_queue(self._job_ids)
        if queue is None:
            self._say("SLURM does not answer; the tasks go on, and so does waiting for them")
            return False
        self._say(describe(queue))
        return queue.num_tasks == 0

    def _sleep(self) -> None:
        deadline_s = time.monotonic() + self._poll_s
        while time.monotonic() < deadline_s and not self._errand.should_stop():
            self._tell_events()
            self._errand.on_event(Event(kind="tick"))
            time.sleep(min(TAIL_PAUSE_S, self._poll_s))

    def _tell_events(self) -> None:
        for event in self._tail.read():
            # A task that was taken for dead may call units failed which others did since.
            if event.kind != "failed" or self._ledger.failure_path(event.unit).exists():
                self._errand.relay(event)
                if event.kind != "start":
                    self._untold.discard(event.unit)

    def _tell_rest(self) -> None:
        """Tell what is in the folder before it is in a log."""
        deadline_s = time.monotonic() + REST_WAIT_S
        while self._untold and time.monotonic() < deadline_s:
            self._tell_events()
            time.sleep(min(0.1, self._poll_s))
        for failure in self._ledger.read_failures():
            if failure["unit"] in self._untold:
                message = str(failure["message"])
                self._errand.relay(Event(kind="failed", unit=failure["unit"], message=message))

    def _left(self) -> list[Unit]:
        over = self._ledger.receipt_names() | self._ledger.failure_names()
        return [unit for unit in self._errand.units if unit.name not in over]

    def _say(self, message: str) -> None:
        if message and message != self._said:
            self._said = message
            self._errand.on_event(Event(kind="wait", message=message))

    def _complaint(self, num_left: int) -> str:
        return (
            f"the tasks of job {', '.join(self._job_ids)} ended, and none of the {num_left} units "
            f"that are left was done. What the last of them printed:\n{self._log_tail()}"
        )

    def _log_tail(self) -> str:
        path = job_path(self._errand.job)
        log_dir = Path.cwd() if isinstance(path, UrlPath) else path.parent
        logs = sorted(log_dir.glob(f"{path.stem}-*.log"), key=lambda log: log.stat().st_mtime)
        with suppress(IndexError, OSError):
            return logs[-1].read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        return f"nothing in {log_dir}: is that folder on a disk that all nodes share?"


def describe(queue: QueueState) -> str:
    """Return what is worth telling of a queue: that all wait, and why."""
    if queue.states["RUNNING"] or not queue.why:
        return ""
    return f"SLURM lets {queue.num_waiting} tasks wait: {queue.why}"
