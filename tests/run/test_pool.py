"""Handing out units, with workers that live in a list and die by the rng."""

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
from shardmill.run.events import Event
from shardmill.run.job import Job
from shardmill.run.pool import Duty, Ending, Fleet, Message
from shardmill.shards.ledger import Ledger


@dataclass(eq=False)
class Puppet:
    """Asks for a unit, does it when it is heard next, and so on."""

    crew: Puppets
    duty: Duty = field(default_factory=Duty)
    inbox: list[str] = field(default_factory=list)
    is_over: bool = False
    has_asked: bool = False

    def send(self, *messages: Message) -> None:
        for message in messages:
            if "unit" in message:
                self.inbox.append(message["unit"]["name"])
            else:
                self.is_over = True

    def bury(self) -> Ending:
        return Ending("fell over", "last words", blameless=self.crew.blameless)

    def kill(self) -> None:
        self.is_over = True

    def speak(self) -> list[dict[str, Any]] | None:
        crew = self.crew
        if self.is_over or (self.has_asked and crew.rng.random() < crew.death_rate):
            return None
        if not self.inbox:
            self.has_asked = True
            return [{"kind": "ask", "count": crew.rng.randint(1, 3)}]
        name = self.inbox.pop(0)
        crew.done[name] += 1
        return [{"kind": "start", "unit": name}, {"kind": "done", "unit": name}]


@dataclass
class Puppets:
    """A crew of puppets."""

    rng: random.Random
    size: int
    death_rate: float = 0.0
    blameless: bool = False
    workers: list[Puppet] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def room(self) -> int:
        return self.size

    def hire(self) -> Puppet:
        self.workers.append(Puppet(self))
        return self.workers[-1]

    def hear(self, timeout_s: float) -> Iterator[tuple[Puppet, list[dict[str, Any]] | None]]:
        for worker in self.workers[:]:
            messages = worker.speak()
            if messages is None:
                self.workers.remove(worker)
            yield worker, messages

    def close(self) -> None:
        self.workers.clear()


def make_fleet(
    tmp_path: Path, crew: Puppets, num_units: int, *, retries: int = 0, **options: Any
) -> tuple[Fleet, list[Event]]:
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
    return Fleet(job, units, crew, **options), events


@settings(max_examples=40)
@given(num_units=st.integers(0, 40), size=st.integers(1, 5), seed=st.integers(0, 99))
def test_without_deaths_every_unit_is_done_once(
    tmp_path_factory: pytest.TempPathFactory, num_units: int, size: int, seed: int
) -> None:
    crew = Puppets(random.Random(seed), size)
    fleet, events = make_fleet(tmp_path_factory.mktemp("fleet"), crew, num_units)
    fleet.run()
    assert len(crew.done) == num_units and set(crew.done.values()) <= {1}
    assert sum(event.kind == "done" for event in events) == num_units


@settings(max_examples=40)
@given(size=st.integers(1, 5), seed=st.integers(0, 999))
def test_deaths_that_are_nobodys_fault_cost_no_retries(
    tmp_path_factory: pytest.TempPathFactory, size: int, seed: int
) -> None:
    crew = Puppets(random.Random(seed), size, death_rate=0.2, blameless=True)
    fleet, events = make_fleet(tmp_path_factory.mktemp("fleet"), crew, 20, retries=0)
    fleet.run()
    assert len(crew.done) == 20 and not any(event.kind == "failed" for event in events)


def test_a_unit_is_blamed_for_deaths_beyond_the_retries(tmp_path: Path) -> None:
    crew = Puppets(random.Random(0), 2, death_rate=0.9)
    fleet, events = make_fleet(tmp_path, crew, 4, retries=1)
    fleet.run()
    failed = [event for event in events if event.kind == "failed"]
    assert failed and all(event.message == "its worker fell over" for event in failed)
    assert len({event.unit for event in failed}) + len(crew.done) >= 4


def test_workers_that_never_get_to_ask_end_the_run(tmp_path: Path) -> None:
    class Stillborn(Puppets):
        def hire(self) -> Puppet:
            worker = super().hire()
            worker.is_over = True
            return worker

    fleet, _ = make_fleet(tmp_path, Stillborn(random.Random(0), 2), 4, retries=1)
    with pytest.raises(ShardmillError, match=r"before its first unit:\nlast words"):
        fleet.run()


def test_what_is_broken_ends_the_run_with_its_message(tmp_path: Path) -> None:
    class Broken(Puppets):
        def hear(self, timeout_s: float) -> Iterator[Any]:
            yield self.workers[0], [{"kind": "broken", "message": "no such model"}]

    fleet, _ = make_fleet(tmp_path, Broken(random.Random(0), 1), 4)
    with pytest.raises(ConfigError, match="no such model"):
        fleet.run()


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

    source, crew = Source(), Puppets(random.Random(0), 3)
    fleet, _ = make_fleet(tmp_path, crew, 12, more=source)
    fleet.run()
    assert len(crew.done) == 12 and set(crew.done.values()) == {1}
    assert max(source.counts) <= 3 * 3
