"""A worker process: `python -m shardmill.run.worker FD`, started by the local executor.

Standard input carries lines from the driver, the descriptor FD carries lines back, all JSON:

    in    {"job": {...}, "path": [...]} first, {"unit": {...}}, {"end": true}, {"quit": true}
    out   {"kind": "ask", "count": n} for the next units, events, {"kind": "broken", "message": ...}

Whatever the stage prints goes to the log file that the driver opened as standard output and error.
The end of standard input without {"end"} means that the driver is gone: the worker exits at once.

A worker's side of the talk with its driver: it asks for units, and waits for what is sent.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from shardmill.errors import ShardmillError
from shardmill.model.codec import from_plain
from shardmill.model.stage import Unit, unit_from_plain
from shardmill.run.events import Event, event_to_plain
from shardmill.run.job import Job, work_job
from shardmill.storage.text import dump_line, parse_json

QUICK_S = 0.005
MAX_ASKED = 16


class Inbox:
    """Units that arrive in one thread and are worked in another; `send` reaches the driver."""

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self._send = send
        self._units: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()

    def put(self, unit: Unit | None) -> None:
        """Hand over a unit; None says that there are no more."""
        self._units.put(unit)

    def units(self) -> Iterator[Unit]:
        """Ask for a unit and yield it, until the driver has no more.

        Units that take no time are asked for by the handful, so that the way is not the work.
        """
        count = 1
        while True:
            if self._units.empty():
                self._send({"kind": "ask", "count": count})
            unit = self._units.get()
            if unit is None:
                return
            began_s = time.monotonic()
            yield unit
            quick = time.monotonic() - began_s < QUICK_S
            count = min(2 * count, MAX_ASKED) if quick else 1


EXIT_ORPHANED = 3
QUIT_GRACE_S = 5
CHUNK_BYTES = 1 << 16


class Channel:
    """The two pipes to the driver."""

    def __init__(self, commands_fd: int, events_fd: int) -> None:
        self._lines = read_lines(commands_fd)
        self._events_fd = events_fd
        self._sending = threading.Lock()
        self.inbox = Inbox(self.send)

    def receive_job(self) -> Job:
        """Return the job; from then on a thread listens for units, and for the driver's end."""
        line = next(self._lines, b"")
        if not line:
            os._exit(EXIT_ORPHANED)
        message = parse_json(line)
        sys.path += [folder for folder in message["path"] if folder not in sys.path]
        job: Job = from_plain(message["job"], Job, where="job")
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        return job

    def send(self, message: dict[str, Any]) -> None:
        """Send one line; called from the work's thread and from the committer's."""
        content = memoryview(dump_line(message))
        with self._sending:
            while content:
                content = content[os.write(self._events_fd, content) :]

    def send_event(self, event: Event) -> None:
        """Send an event to the driver."""
        self.send(event_to_plain(event))

    def _listen(self) -> None:
        for line in self._lines:
            message = parse_json(line)
            if "unit" in message:
                self.inbox.put(unit_from_plain(message["unit"]))
            elif "quit" in message:
                _interrupt_work()
            else:
                self.inbox.put(None)
        os._exit(EXIT_ORPHANED)


def main() -> None:
    """Work off what the driver sends."""
    faulthandler.enable()
    _leave_signals_to_the_driver()
    os.set_inheritable(int(sys.argv[1]), False)
    channel = Channel(_take_stdin(), int(sys.argv[1]))
    job = channel.receive_job()
    try:
        work_job(job, job.load_stage(), channel.inbox.units(), channel.send_event)
    except KeyboardInterrupt:
        pass
    except ShardmillError as error:
        channel.send({"kind": "broken", "message": str(error)})


def read_lines(descriptor: int) -> Iterator[bytes]:
    """Yield whole lines until the other end closes.

    A buffered file would hold a lock while it waits, on which the interpreter's exit can hang.
    """
    rest = b""
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _take_stdin() -> int:
    """Keep standard input for the driver's lines, and give the stage an empty one."""
    commands_fd = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return commands_fd


def _leave_signals_to_the_driver() -> None:
    # Ctrl-C and a scheduler's SIGTERM reach every process of the group; the driver decides.
    # A handler that does nothing, unlike SIG_IGN, is not inherited by programs that a stage starts.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGUSR1, signal.default_int_handler)


def _interrupt_work() -> None:
    """End the unit at work with `KeyboardInterrupt`, let finished units be committed, and exit."""
    # More than once, because an exception that is raised inside of a finalizer gets lost.
    for _ in range(QUIT_GRACE_S):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        time.sleep(1)
    os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    main()
