"""The engine of Ray: the driver hands out units to actors of a cluster, one that exists or its own.

A CPU stage gets an actor for each processor, a GPU stage one for each GPU or part of a GPU; each
opens the stage once. Actors work on a few units at a time. If a node dies, its units go to others;
if the driver or the head dies, the next driver goes on from the receipts.

An actor talks with the driver as a worker process does over pipes, in calls that carry JSON lines:

    tell(lines)    {"unit": {...}}, {"end": true}
    hear(wait_s)   {"kind": "hello", "node": ...} first, then asks and events, {"kind": "broken",
                   "message": ...} or {"kind": "died", "trace": ...}, and {"kind": "bye"} last;
                   nothing if nothing happened for a while

The stage works in a thread of its own, so that calls are answered meanwhile. Nothing but names of
units and events passes through Ray; media are read and written by the worker.
"""

from __future__ import annotations

import atexit
import logging
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
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardmill.errors import ConfigError, ShardmillError, need
from shardmill.machine import count_cpus
from shardmill.model.codec import code_path, from_plain, to_plain
from shardmill.running.engine import Assignment, Engine, Job, add_to_path
from shardmill.running.events import Event, OnEvent, event_to_plain
from shardmill.running.pool import (
    Message,
    PoolWorker,
    WorkerExit,
    WorkerPool,
    WorkerUnits,
    check_importable,
)
from shardmill.running.worker import ReceivedUnits, work_job
from shardmill.storage.path import is_remote
from shardmill.storage.text import dump_line, parse_json

CONNECT_TIMEOUT_S = 10.0
HEAD_GRACE_S = 10.0  # well below the minute after which Ray aborts the driver
HEAR_WAIT_S = 5.0  # a call that waits costs nothing; without an end it would outlive its driver
COUNT_PAUSE_S = 2.0  # nodes come and go in minutes, and counting them asks the head
# What an actor says about itself, and not about units.
ABOUT_ACTOR = ("hello", "died", "bye")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray(Engine):
    """A cluster at `address`, or else one on this machine that ends with the run.

    The address is "ray://host:10001" from outside of the cluster, "host:6379" or "auto" on one of
    its machines. Each worker takes `cpus` processors and `gpus` GPUs, which may be parts.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.cpus < 0 or self.gpus < 0 or self.cpus + self.gpus == 0:
            raise ConfigError(f"a worker needs CPUs or GPUs, got {self.cpus} and {self.gpus}")

    def check(self) -> None:
        """Connect to the cluster, and see that a worker fits on one of its nodes."""
        ray = need("ray", extra="ray")
        if not ray.is_initialized():
            self._connect(ray)
        needs = {"CPU": self.cpus, "GPU": self.gpus}
        nodes = list(nodes_of(ray).values())
        if not any(count_fitting(node, needs) for node in nodes):
            ray.shutdown()
            rows = [
                f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes
            ]
            has = f"{len(rows)} nodes: {', '.join(rows[:8])}" if rows else "no nodes"
            raise ConfigError(
                f"no node of the Ray cluster has room for a worker of {self.cpus:g} CPUs and "
                f"{self.gpus:g} GPUs; it has {has}. Ask for less, as in "
                "--on ray,cpus=1,gpus=0, or add such a node"
            )

    def work(self, assignment: Assignment) -> None:
        """Hand out the units to actors."""
        check_importable(assignment.stage)
        ray = need("ray", extra="ray")
        spawner = ActorSpawner(
            ray,
            assignment.job,
            cpus=self.cpus,
            gpus=self.gpus,
            limit=assignment.num_workers,
            on_event=assignment.on_event,
        )
        pool = WorkerPool(
            assignment.job,
            assignment.units,
            spawner,
            on_event=assignment.on_event,
            should_stop=assignment.should_stop,
        )
        # Ray prints pages about nodes that died to standard output, which belongs to the report.
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            try:
                pool.run()
            except ClusterLost:
                # Ray would say goodbye to a head that is gone, and wait for its answer.
                atexit.unregister(ray.shutdown)
                sys.excepthook = sys.__excepthook__
                raise
            ray.shutdown()

    def _connect(self, ray: Any) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address is None:
            options |= {"num_cpus": count_cpus(), "include_dashboard": False}
        host, colon, port = (self.address or "").removeprefix("ray://").rpartition(":")
        try:
            if colon and port.isdigit():  # Ray would take minutes to find out that nobody listens
                at = (host.strip("[]"), int(port))
                socket.create_connection(at, timeout=CONNECT_TIMEOUT_S).close()
            with _apart_from_code():
                ray.init(address=self.address or "local", **options)
        except (ConnectionError, RuntimeError, OSError, ValueError, ImportError) as error:
            lines = str(error).strip().splitlines()
            raise ConfigError(
                f"cannot reach a Ray cluster at {self.address or 'this machine'}: "
                f"{lines[0].rstrip('.') if lines else type(error).__name__}. Is it running (ray "
                "status), and is the address ray://HOST:10001 from outside of it, or HOST:6379 on "
                "one of its machines?"
            ) from error


@contextmanager
def _apart_from_code() -> Iterator[None]:
    """Start Ray as if from our own folder.

    It puts the working folder, and that of the script, first on the search path of its workers.
    """
    ours, words = Path(__file__).parents[2], sys.argv
    try:
        sys.argv = [__file__, *words[1:]]
        with chdir(ours):
            yield
    finally:
        sys.argv = words


def count_fitting(resources: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Return how many workers fit on a node: the scarcest resource decides."""
    counts = [int(resources.get(name, 0.0) / need) for name, need in needs.items() if need > 0]
    return min(counts, default=1)


def nodes_of(ray: Any) -> dict[str, dict[str, float]]:
    """Return the resources of each living node by its id."""
    try:
        return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise ClusterLost(error) from error


class ClusterLost(ShardmillError):
    """The cluster has gone away under the driver."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"the Ray cluster has gone away ({type(error).__name__}). What is done is kept: start "
            "the cluster again, and run the same command"
        )


class HeadWatch:
    """Notices that the head is gone before Ray does, which would end this process without a word.

    Ray waits a minute for a head that does not answer and then aborts the driver.
    """

    def __init__(self, ray: Any) -> None:
        is_client = ray.util.client.ray.is_connected()
        address = "" if is_client else str(ray.get_runtime_context().gcs_address)
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
                raise ClusterLost(error) from error
        return self._silent_since_s is None


class ActorSpawner:
    """Starts actors of `cpus` processors and `gpus` GPUs, up to `limit` of them."""

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
        # Two calls at once: one waits in `hear` while another brings units with `tell`.
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_concurrency=2)
        self._class = remote(_Actor)
        self._listening: dict[Any, RayWorker] = {}
        self._num_spawned = 0
        self._capacity, self._next_count_s = 1, 0.0

    def capacity(self) -> int:
        """Return for how many workers the living nodes have room; counted now and then."""
        if time.monotonic() >= self._next_count_s:
            self._next_count_s = time.monotonic() + COUNT_PAUSE_S
            if self._head.is_there():
                self._capacity = self._count_capacity()
        return self._capacity

    def spawn(self) -> RayWorker:
        """Create an actor with drafts of its own, and listen to it."""
        job = self._job.for_run(f"{self._job.token}/{self._num_spawned:05d}")
        self._num_spawned += 1
        job.ledger.make_drafts()
        plain = to_plain(job)
        order = {"job": plain, "path": code_path(plain), "cwd": os.getcwd()}  # noqa: PTH109
        actor = self._class.remote(dump_line(order))
        worker = RayWorker(self._ray, self._head, actor, job.ledger.draft_dir)
        self._listen(worker)
        return worker

    def poll(self, timeout_s: float) -> Iterator[tuple[PoolWorker, list[dict[str, Any]] | None]]:
        """Yield what actors say; one that cannot be asked any more has ended."""
        if not self._listening:
            time.sleep(timeout_s)
            return
        for ref in self._ready(timeout_s):
            worker = self._listening.pop(ref)
            messages = self._answer(ref, worker)
            yield worker, [message for message in messages if message["kind"] not in ABOUT_ACTOR]
            if worker.is_over:
                yield worker, None
            else:
                self._listen(worker)

    def close(self) -> None:
        """Stop listening."""
        self._listening.clear()

    def _count_capacity(self) -> int:
        nodes = nodes_of(self._ray)
        fitting = sum(count_fitting(node, self._needs) for node in nodes.values())
        if self._num_nodes not in (0, len(nodes)):
            message = f"Ray has {len(nodes)} nodes now, with room for {fitting} workers"
            self._on_event(Event(kind="wait", message=message))
        self._num_nodes = len(nodes)
        # One may wait for a node that comes later.
        return max(1, fitting if self._limit is None else min(fitting, self._limit))

    def _listen(self, worker: RayWorker) -> None:
        self._listening[worker.actor.hear.remote(HEAR_WAIT_S)] = worker

    def _ready(self, timeout_s: float) -> list[Any]:
        refs = list(self._listening)
        try:
            first, rest = self._ray.wait(refs, num_returns=1, timeout=timeout_s)
            if first and rest:
                more, _ = self._ray.wait(rest, num_returns=len(rest), timeout=0)
                first += more
        except (ConnectionError, self._ray.exceptions.RayError) as error:
            raise ClusterLost(error) from error
        ready: list[Any] = first
        return ready

    def _answer(self, ref: Any, worker: RayWorker) -> list[dict[str, Any]]:
        try:
            lines: bytes = self._ray.get(ref)
        except self._ray.exceptions.RayActorError as error:
            worker.last_words, worker.is_over = str(error), True
            return []
        except (ConnectionError, self._ray.exceptions.RayError) as error:
            raise ClusterLost(error) from error
        messages = [parse_json(line) for line in lines.splitlines()]
        for message in messages:
            worker.note(message)
        return messages


@dataclass(slots=True, eq=False)
class RayWorker:
    """An actor as the driver sees it; `node` is known once it has said hello."""

    ray: Any
    head: HeadWatch
    actor: Any
    draft_dir: Path
    given: WorkerUnits = field(default_factory=WorkerUnits)
    node: str = ""
    last_words: str = ""
    is_over: bool = False

    def note(self, message: Mapping[str, Any]) -> None:
        """Take note of what the actor says about itself."""
        if message["kind"] == "hello":
            self.node = message["node"]
        elif message["kind"] == "died":
            self.last_words = message["trace"]
        elif message["kind"] == "bye":
            self.is_over = True

    def send(self, *messages: Message) -> None:
        """Send messages; to quit is to be killed, since a draft may be left at any time."""
        if any("quit" in message for message in messages):
            self.kill()
        else:
            self.actor.tell.remote(b"".join(map(dump_line, messages)))

    def reap(self) -> WorkerExit:
        """Make sure that it is dead, also where the network was cut, and return how it ended."""
        self.kill()
        # A worker on a node that only seems dead can commit nothing without its drafts.
        shutil.rmtree(self.draft_dir, ignore_errors=True)
        if not self.head.is_there() or (self.node and self.node not in nodes_of(self.ray)):
            return WorkerExit("was lost with its node", self.last_words, blameless=True)
        return WorkerExit("died", self.last_words)

    def kill(self) -> None:
        """End the actor; without a head, Ray does so by itself."""
        with suppress(ClusterLost, self.ray.exceptions.RayError, ConnectionError, ValueError):
            if self.head.is_there():
                self.ray.kill(self.actor)


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A message to the driver, and whether it has arrived."""

    message: dict[str, Any]
    arrived: threading.Event = field(default_factory=threading.Event)


class ActorWorker:
    """The worker inside of an actor: an object that is told of units and heard about them."""

    def __init__(self, order: bytes, node: str) -> None:
        self._order, self._host = parse_json(order), socket.gethostname()
        self._outgoing: queue.SimpleQueue[_Sent] = queue.SimpleQueue()
        self._handed_over: list[_Sent] = []
        self._units = ReceivedUnits(self._send)
        self._send({"kind": "hello", "node": node})
        ThreadPoolExecutor(1, "work").submit(self._work).add_done_callback(self._send_end)

    def tell(self, lines: bytes) -> None:
        """Take units, or the end of them."""
        for line in lines.splitlines():
            self._units.put(parse_json(line))

    def hear(self, wait_s: float) -> bytes:
        """Return what happened since; waits a while for something to happen."""
        # Whoever asks again has got the last answer.
        for sent in self._handed_over:
            sent.arrived.set()
        self._handed_over = []
        with suppress(queue.Empty):
            self._handed_over.append(self._outgoing.get(timeout=wait_s))
            while True:
                self._handed_over.append(self._outgoing.get_nowait())
        return b"".join(dump_line(sent.message) for sent in self._handed_over)

    def _send(self, message: dict[str, Any]) -> _Sent:
        sent = _Sent(message)
        self._outgoing.put(sent)
        return sent

    def _send_end(self, work: Future[None]) -> None:
        error = work.exception()
        if isinstance(error, ShardmillError):
            self._send({"kind": "broken", "message": str(error)})
        elif error is not None:
            trace = "".join(traceback.format_exception(error))
            self._send({"kind": "died", "trace": trace})
        self._send({"kind": "bye"})

    def _work(self) -> None:
        os.chdir(self._order["cwd"])
        add_to_path(self._order["path"])
        job: Job = from_plain(self._order["job"], Job, where="job", trusted=True)
        if not is_remote(job.out_dir) and not job.ledger.draft_dir.is_dir():
            raise ShardmillError(
                f"{self._host} does not see {job.out_dir} as the driver does: all nodes "
                "of the cluster must share the folder under the same path, or write to a store"
            )
        work_job(job, job.load_stage(), self._units, self._report)

    def _report(self, event: Event) -> None:
        sent = self._send(event_to_plain(replace(event, host=self._host)))
        # A unit that kills its actor is to be blamed for it, so the driver must know of its start.
        if event.kind == "start":
            sent.arrived.wait()


class _Actor(ActorWorker):
    """A worker that finds out by itself on which node it is."""

    def __init__(self, order: bytes) -> None:
        import ray

        super().__init__(order, ray.get_runtime_context().get_node_id())
