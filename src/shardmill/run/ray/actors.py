"""Workers as actors of Ray: as many as the cluster has room for, on nodes that come and go.

A cluster of Ray as a driver sees it: its nodes, how many workers fit, whether its head lives.

A worker inside of a Ray actor: the same talk as over pipes, in calls that carry JSON lines.

    tell(lines)    {"unit": {...}}, {"end": true}
    hear(wait_s)   {"kind": "hello", "node": ...} first, then asks and events, {"kind": "broken",
                   "message": ...} or {"kind": "died", "trace": ...}, and {"kind": "bye"} last;
                   nothing if nothing happened for a while

The stage is opened once, in a thread of its own, so that calls are answered while it works. Nothing
but names of units and events passes through Ray; media are read and written by the worker.
"""

from __future__ import annotations

import atexit
import os
import queue
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardmill.errors import ShardmillError
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.stage import unit_from_plain
from shardmill.run.events import Event, OnEvent, event_to_plain
from shardmill.run.job import Job, work_job
from shardmill.run.pool import Duty, Ending, Message, Worker
from shardmill.run.worker import Inbox
from shardmill.storage.text import dump_line, parse_json
from shardmill.storage.url import is_remote

HEAD_GRACE_S = 10.0


def count_fitting(resources: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Return how many workers fit on a node: the scarcest resource decides."""
    counts = [int(resources.get(name, 0.0) / need) for name, need in needs.items() if need > 0]
    return min(counts, default=1)


def nodes_of(ray: Any) -> dict[str, dict[str, float]]:
    """Return the resources of each living node by its id."""
    try:
        return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise lost(error) from error


class ClusterLost(ShardmillError):
    """The cluster has gone away under the driver."""


def lost(error: Exception) -> ClusterLost:
    """Return the error for a cluster that has gone away."""
    return ClusterLost(
        f"the Ray cluster has gone away ({type(error).__name__}). What is done is kept: start the "
        "cluster again, and run the same command"
    )


class HeadWatch:
    """Notices that the head is gone before Ray does, which would end this process without a word.

    Ray waits a minute for a head that does not answer and then aborts the driver.
    """

    def __init__(self, ray: Any) -> None:
        address = "" if ray.util.client.ray.is_connected() else _head_address(ray)
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port)) if port else None
        self._silent_since_s: float | None = None

    def is_there(self) -> bool:
        """Ask the head and return whether it answers; raise if it has been silent for a while."""
        try:
            if self._address is not None:
                socket.create_connection(self._address, timeout=1.0).close()
            self._silent_since_s = None
        except OSError as error:
            now_s = time.monotonic()
            self._silent_since_s = self._silent_since_s or now_s
            if now_s - self._silent_since_s >= HEAD_GRACE_S:
                raise lost(error) from error
        return self._silent_since_s is None


def abandon(ray: Any) -> None:
    """Leave a cluster whose head is gone, without the goodbyes that would wait for its answer."""
    atexit.unregister(ray.shutdown)
    sys.excepthook = sys.__excepthook__


def _head_address(ray: Any) -> str:
    return str(ray.get_runtime_context().gcs_address)


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


HEAR_WAIT_S = 5.0
ROOM_PAUSE_S = 2.0
# What an actor says of itself, and not of units.
PERSONAL = ("hello", "died", "bye")


@dataclass(slots=True, eq=False)
class RayHand:
    """An actor as the driver sees it; `node` is known once it has said hello."""

    ray: Any
    head: HeadWatch
    actor: Any
    draft_dir: Path
    duty: Duty = field(default_factory=Duty)
    node: str = ""
    last_words: str = ""
    is_over: bool = False

    def learn(self, message: Mapping[str, Any]) -> None:
        """Take note of what concerns the actor itself."""
        if message["kind"] == "hello":
            self.node = message["node"]
        elif message["kind"] == "died":
            self.last_words = message["trace"]
        elif message["kind"] == "bye":
            self.is_over = True

    def send(self, *messages: Message) -> None:
        """Send words; to quit is to be killed, since a draft may be left at any time."""
        if any("quit" in message for message in messages):
            self.kill()
        else:
            self.actor.tell.remote(b"".join(map(dump_line, messages)))

    def bury(self) -> Ending:
        """Make sure that it is dead, also where the network was cut, and return how it ended."""
        self.kill()
        # The fence: a worker on a node that only seems dead can commit nothing without its drafts.
        shutil.rmtree(self.draft_dir, ignore_errors=True)
        if not self.head.is_there() or (self.node and self.node not in nodes_of(self.ray)):
            return Ending("was lost with its node", self.last_words, blameless=True)
        return Ending("died", self.last_words)

    def kill(self) -> None:
        """End the actor; without a head, Ray does so by itself."""
        with suppress(ClusterLost, self.ray.exceptions.RayError, ConnectionError, ValueError):
            if self.head.is_there():
                self.ray.kill(self.actor)


class RayCrew:
    """Hires actors of `cpus` processors and `gpus` GPUs, up to `limit` of them."""

    def __init__(
        self,
        ray: Any,
        job: Job,
        *,
        cpus: float,
        gpus: float,
        limit: int | None,
        on_event: OnEvent,
    ) -> None:
        self._ray, self._job, self._limit, self._on_event = ray, job, limit, on_event
        self._head, self._num_nodes = HeadWatch(ray), 0
        self._needs = {"CPU": cpus, "GPU": gpus}
        self._class = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_concurrency=2)(
            _Actor
        )
        self._listening: dict[Any, RayHand] = {}
        self._num_hired = 0
        self._room, self._next_count_s = 1, 0.0

    def room(self) -> int:
        """Return for how many workers the living nodes have room; counted now and then."""
        if time.monotonic() >= self._next_count_s:
            self._next_count_s = time.monotonic() + ROOM_PAUSE_S
            if self._head.is_there():
                self._room = self._count_room()
        return self._room

    def hire(self) -> RayHand:
        """Create an actor with drafts of its own, and listen to it."""
        job = self._job.for_run(f"{self._job.token}/{self._num_hired:05d}")
        self._num_hired += 1
        job.ledger.make_drafts()
        order = {"job": to_plain(job), "path": sys.path, "cwd": os.getcwd()}  # noqa: PTH109
        actor = self._class.remote(dump_line(order))
        hand = RayHand(self._ray, self._head, actor, job.ledger.draft_dir)
        self._listen(hand)
        return hand

    def hear(self, timeout_s: float) -> Iterator[tuple[Worker, list[dict[str, Any]] | None]]:
        """Yield what actors say; one that cannot be asked any more has ended."""
        if not self._listening:
            time.sleep(timeout_s)
            return
        for ref in self._ready(timeout_s):
            hand = self._listening.pop(ref)
            messages = self._answer(ref, hand)
            yield hand, [message for message in messages if message["kind"] not in PERSONAL]
            if hand.is_over:
                yield hand, None
            else:
                self._listen(hand)

    def close(self) -> None:
        """Forget whom we listened to."""
        self._listening.clear()

    def _count_room(self) -> int:
        nodes = nodes_of(self._ray)
        fitting = sum(count_fitting(node, self._needs) for node in nodes.values())
        if self._num_nodes not in (0, len(nodes)):
            message = f"Ray has {len(nodes)} nodes now, with room for {fitting} workers"
            self._on_event(Event(kind="wait", message=message))
        self._num_nodes = len(nodes)
        # One may wait for a node that comes later.
        return max(1, fitting if self._limit is None else min(fitting, self._limit))

    def _listen(self, hand: RayHand) -> None:
        self._listening[hand.actor.hear.remote(HEAR_WAIT_S)] = hand

    def _ready(self, timeout_s: float) -> list[Any]:
        refs = list(self._listening)
        try:
            first, rest = self._ray.wait(refs, num_returns=1, timeout=timeout_s)
            if first and rest:
                more, _ = self._ray.wait(rest, num_returns=len(rest), timeout=0)
                first += more
        except (ConnectionError, self._ray.exceptions.RayError) as error:
            raise lost(error) from error
        ready: list[Any] = first
        return ready

    def _answer(self, ref: Any, hand: RayHand) -> list[dict[str, Any]]:
        try:
            lines: bytes = self._ray.get(ref)
        except self._ray.exceptions.RayActorError as error:
            hand.last_words, hand.is_over = str(error), True
            return []
        except (ConnectionError, self._ray.exceptions.RayError) as error:
            raise lost(error) from error
        messages = [parse_json(line) for line in lines.splitlines()]
        for message in messages:
            hand.learn(message)
        return messages


class _Actor(RayWorker):
    """A worker that finds out by itself on which node it is."""

    def __init__(self, order: bytes) -> None:
        import ray

        super().__init__(order, ray.get_runtime_context().get_node_id())
