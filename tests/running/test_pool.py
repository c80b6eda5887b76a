"""Handing out units, with workers that live in a list and die at random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stages_for_tests import Nothing

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.codec import to_plain
from shardmill.model.stage import Unit
from shardmill.running.engine import Job
from shardmill.running.events import Event
from shardmill.running.pool import Message, WorkerExit, WorkerPool, WorkerUnits
from shardmill.shards.ledger import Ledger


@dataclass(eq=False)
class Puppet:
    """Asks for a unit, does it when it is heard next, and so on."""

    spawner: Puppets
    given: WorkerUnits = field(default_factory=WorkerUnits)
    received: list[str] = field(default_factory=list)
    is_over: bool = False
    has_asked: bool = False

    def send(self, *messages: Message) -> None:
        for message in messages:
            if "unit" in message:
                self.received.append(message["unit"]["name"])
            else:
                self.is_over = True

    def reap(self) -> WorkerExit:
        return WorkerExit("fell over", "last words", blameless=self.spawner.blameless)

    def kill(self) -> None:
        self.is_over = True

    def speak(self) -> list[dict[str, Any]] | None:
        spawner = self.spawner
        if self.is_over or (self.has_asked and spawner.rng.random() < spawner.death_rate):
            return None
        if not self.received:
            self.has_asked = True
            return [{"kind": "ask", "count": spawner.rng.randint(1, 3)}]
        name = self.received.pop(0)
        spawner.done[name] += 1
        return [{"kind": "start", "unit": name}, {"kind": "done", "unit": name}]


@dataclass
class Puppets:
    """A spawner of puppets."""

    rng: random.Random
    size: int
    death_rate: float = 0.0
    blameless: bool = False
    workers: list[Puppet] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def capacity(self) -> int:
        return self.size

    def spawn(self) -> Puppet:
        self.workers.append(Puppet(self))
        return self.workers[-1]

    def poll(self, timeout_s: float) -> Iterator[tuple[Puppet, list[dict[str, Any]] | None]]:
        for worker in self.workers[:]:
            messages = worker.speak()
            if messages is None:
                self.workers.remove(worker)
            yield worker, messages

    def close(self) -> None:
        self.workers.clear()


def make_pool(
    tmp_path: Path, spawner: Puppets, num_units: int, *, retries: int = 0, **options: Any
) -> tuple[WorkerPool, list[Event]]:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    ledger.draft_dir.mkdir(exist_ok=True)
    stage, events = Nothing(num_units=num_units), list[Event]()
    job = Job(
        stage=to_plain(stage),
        out_dir=str(ledger.out_dir),
        token="run",
        retries=retries,
        max_skip_rate=0.0,
    )
    units = [] if "more" in options else list(stage.units())
    options = {"on_event": events.append, "should_stop": lambda: False} | options
    return WorkerPool(job, units, spawner, **options), events


@settings(max_examples=40)
@given(num_units=st.integers(0, 40), size=st.integers(1, 5), seed=st.integers(0, 99))
def test_without_deaths_every_unit_is_done_once(
    tmp_path_factory: pytest.TempPathFactory, num_units: int, size: int, seed: int
) -> None:
    spawner = Puppets(random.Random(seed), size)
    pool, events = make_pool(tmp_path_factory.mktemp("pool"), spawner, num_units)
    pool.run()
    assert len(spawner.done) == num_units and set(spawner.done.values()) <= {1}
    assert sum(event.kind == "done" for event in events) == num_units


@settings(max_examples=40)
@given(size=st.integers(1, 5), seed=st.integers(0, 999))
def test_deaths_that_are_nobodys_fault_cost_no_retries(
    tmp_path_factory: pytest.TempPathFactory, size: int, seed: int
) -> None:
    spawner = Puppets(random.Random(seed), size, death_rate=0.2, blameless=True)
    pool, events = make_pool(tmp_path_factory.mktemp("pool"), spawner, 20, retries=0)
    pool.run()
    assert len(spawner.done) == 20 and not any(event.kind == "failed" for event in events)


def test_a_unit_is_blamed_for_deaths_beyond_the_retries(tmp_path: Path) -> None:
    spawner = Puppets(random.Random(0), 2, death_rate=0.9)
    pool, events = make_pool(tmp_path, spawner, 4, retries=1)
    pool.run()
    failed = [event for event in events if event.kind == "failed"]
    assert failed and all(event.message == "its worker fell over" for event in failed)
    assert len({event.unit for event in failed}) + len(spawner.done) >= 4


def test_workers_that_never_get_to_ask_end_the_run(tmp_path: Path) -> None:
    class DeadAtStart(Puppets):
        def spawn(self) -> Puppet:
            worker = super().spawn()
            worker.is_over = True
            return worker

    pool, _ = make_pool(tmp_path, DeadAtStart(random.Random(0), 2), 4, retries=1)
    with pytest.raises(ShardmillError, match=r"before its first unit:\nlast words"):
        pool.run()


def test_what_is_broken_ends_the_run_with_its_message(tmp_path: Path) -> None:
    class Broken(Puppets):
        def poll(self, timeout_s: float) -> Iterator[Any]:
            yield self.workers[0], [{"kind": "broken", "message": "no such model"}]

    pool, _ = make_pool(tmp_path, Broken(random.Random(0), 1), 4)
    with pytest.raises(ConfigError, match="no such model"):
        pool.run()


def test_a_source_is_asked_for_no_more_than_can_be_begun(tmp_path: Path) -> None:
    class Source:
        """Gives units, then nothing for a while, then the rest."""

        def __init__(self) -> None:
            self.units = list(Nothing(num_units=12).units())
            self.pauses = 3
            self.counts: list[int] = []

        def take(self, count: int) -> Sequence[Unit]:
            self.counts.append(count)
            if len(self.units) == 6 and self.pauses:
                self.pauses -= 1
                return ()
            taken, self.units = self.units[:1], self.units[1:]
            return taken

        def is_waiting(self) -> bool:
            return bool(self.units)

    source, spawner = Source(), Puppets(random.Random(0), 3)
    pool, _ = make_pool(tmp_path, spawner, 12, more=source)
    pool.run()
    assert len(spawner.done) == 12 and set(spawner.done.values()) == {1}
    assert max(source.counts) <= 3 * 3
