"""A worker inside of a Ray actor: the same talk as over pipes, in calls that carry JSON lines.

    tell(lines)    {"unit": {...}}, {"end": true}
    hear(wait_s)   {"kind": "hello", "node": ...} first, then asks and events, {"kind": "broken",
                   "message": ...} or {"kind": "died", "trace": ...}, and {"kind": "bye"} last;
                   nothing if nothing happened for a while

The stage is opened once, in a thread of its own, so that calls are answered while it works. Nothing
but names of units and events passes through Ray; media are read and written by the worker.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from shardmill.errors import ShardmillError
from shardmill.io.jsontext import dump_line, parse_json
from shardmill.model.codec import from_plain
from shardmill.model.stage import unit_from_plain
from shardmill.remote.url import is_remote
from shardmill.run.events import Event, event_to_plain
from shardmill.run.inbox import Inbox
from shardmill.run.job import Job, work_job


@dataclass(frozen=True, slots=True, eq=False)
class _Letter:
    """A message to the driver, and whether it has arrived."""

    message: dict[str, Any]
    arrived: threading.Event = field(default_factory=threading.Event)


class RayWorker:
    """Works off units that it is told of."""

    def __init__(self, order: bytes, node: str) -> None:
        self._order, self._host = parse_json(order), socket.gethostname()
        self._outbox: queue.SimpleQueue[_Letter] = queue.SimpleQueue()
        self._handed_over: list[_Letter] = []
        self._inbox = Inbox(self._post)
        self._post({"kind": "hello", "node": node})
        ThreadPoolExecutor(1, "work").submit(self._work_off).add_done_callback(self._say_goodbye)

    def tell(self, lines: bytes) -> None:
        """Take units, or the end of them."""
        for line in lines.splitlines():
            message = parse_json(line)
            self._inbox.put(unit_from_plain(message["unit"]) if "unit" in message else None)

    def hear(self, wait_s: float) -> bytes:
        """Return what happened since; waits a while for something to happen."""
        # Whoever asks again has got the last answer.
        for letter in self._handed_over:
            letter.arrived.set()
        self._handed_over = []
        with suppress(queue.Empty):
            self._handed_over.append(self._outbox.get(timeout=wait_s))
            while True:
                self._handed_over.append(self._outbox.get_nowait())
        return b"".join(dump_line(letter.message) for letter in self._handed_over)

    def _post(self, message: dict[str, Any]) -> _Letter:
        letter = _Letter(message)
        self._outbox.put(letter)
        return letter

    def _say_goodbye(self, work: Future[None]) -> None:
        error = work.exception()
        if isinstance(error, ShardmillError):
            self._post({"kind": "broken", "message": str(error)})
        elif error is not None:
            trace = "".join(traceback.format_exception(error))
            self._post({"kind": "died", "trace": trace})
        self._post({"kind": "bye"})

    def _work_off(self) -> None:
        os.chdir(self._order["cwd"])
        sys.path += [folder for folder in self._order["path"] if folder not in sys.path]
        job: Job = from_plain(self._order["job"], Job, where="job")
        if not is_remote(job.out_dir) and not job.ledger.draft_dir.is_dir():
            raise ShardmillError(
                f"{self._host} does not see {job.out_dir} as the driver does: all nodes "
                "of the cluster must share the folder under the same path, or write to a store"
            )
        work_job(job, job.load_stage(), self._inbox.units(), self._report)

    def _report(self, event: Event) -> None:
        letter = self._post(event_to_plain(replace(event, host=self._host)))
        # A unit that kills its actor is to be blamed for it, so the driver must know of its start.
        if event.kind == "start":
            letter.arrived.wait()
