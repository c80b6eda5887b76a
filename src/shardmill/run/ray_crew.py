"""Workers as actors of Ray: as many as the cluster has room for, on nodes that come and go."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardmill.io.jsontext import dump_line, parse_json
from shardmill.model.codec import to_plain
from shardmill.run.events import Event, OnEvent
from shardmill.run.fleet import Duty, Ending, Message, Worker
from shardmill.run.job import Job
from shardmill.run.ray_cluster import ClusterLost, HeadWatch, count_fitting, lost, nodes_of
from shardmill.run.ray_worker import RayWorker

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
