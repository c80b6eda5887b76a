"""Claims: one task a try, the dead replaced, the living left alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from other_tasks import Clock, write_lock
from stages_for_tests import Nothing

from shardmill.model.stage import Unit
from shardmill.running import task as task_module
from shardmill.running.events import Event
from shardmill.running.lock import HeartbeatWatch, LockTiming
from shardmill.running.task import FREE, MAX_DEATHS, ClaimedUnits, Claims
from shardmill.shards.ledger import Ledger


def test_of_many_that_claim_one_gets_it(tmp_path: Path) -> None:
    rivals = [Claims(tmp_path, f"{i:016x}") for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        for number in (1, 2, 3):
            won = list(pool.map(Claims.take, rivals, repeat("a.b"), repeat(number)))
            assert sum(won) == 1
            assert rivals[0].owner("a.b", number) == rivals[won.index(True)].token
    assert rivals[0].latest() == {"a.b": 3}


def test_only_its_maker_frees_a_claim(tmp_path: Path) -> None:
    mine, other = Claims(tmp_path, "1" * 16), Claims(tmp_path, "2" * 16)
    assert mine.take("u", 1)
    other.free("u", 1)
    assert mine.owner("u", 1) == mine.token
    mine.free("u", 1)
    assert other.owner("u", 1) == FREE
    assert other.take("u", 2) and not mine.take("u", 2)


def test_tries_that_were_given_back_are_no_deaths(tmp_path: Path) -> None:
    claims = Claims(tmp_path, "1" * 16)
    for number in range(1, 6):
        claims.take("u", number)
    for number in (2, 4):
        claims.free("u", number)
    assert claims.num_deaths("u", 5) == 3


@pytest.mark.parametrize("content", [b"", b"../../etc", b"\xff\xfe", b"a" * 99, b"a/b"])
def test_what_no_task_wrote_has_no_owner(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "u.1").write_bytes(content)
    assert Claims(tmp_path, "1" * 16).owner("u", 1) == ""


def test_a_folder_that_is_gone_has_no_claims_and_takes_none(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "gone", "1" * 16)
    assert claims.latest() == {} and not claims.take("u", 1)
    claims.free("u", 1)


def test_names_with_dots_and_strange_files(tmp_path: Path) -> None:
    claims = Claims(tmp_path, "1" * 16)
    assert claims.take("shard.v2.007", 1) and claims.take("shard.v2", 11)
    (tmp_path / "README").touch()
    (tmp_path / ".nfs0001").touch()
    assert {"shard.v2.007": 1, "shard.v2": 11}.items() <= claims.latest().items()


class Folder:
    """A folder with units, and tasks in it that take them."""

    def __init__(self, out: Path, num_units: int) -> None:
        self.units = list(Nothing(num_units=num_units).units())
        self.ledger = Ledger(out, "driver")
        self.ledger.make_folders()
        self.ledger.draft_dir.mkdir()
        self.claims_dir, self.locks_dir = out / "claims", out / "locks"
        self.claims_dir.mkdir()
        self.clock = Clock()
        self.events: list[Event] = []

    def task(self, token: str, *, beat: int = 1) -> ClaimedUnits:
        write_lock(self.locks_dir, token, beat=beat)
        (self.ledger.drafts_dir / token).mkdir(exist_ok=True)
        watch = HeartbeatWatch(self.locks_dir, LockTiming(), self.clock)
        claims = Claims(self.claims_dir, token)
        return ClaimedUnits(self.ledger, self.units, claims, watch, self.events.append)

    def finish(self, name: str) -> None:
        self.ledger.receipt_path(name).write_text("{}")


def names(units: Sequence[Unit]) -> list[str]:
    return [unit.name for unit in units]


@settings(max_examples=30)
@given(num_units=st.integers(0, 40), num_tasks=st.integers(1, 6), seed=st.integers(0, 1000))
def test_every_unit_is_taken_once_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory, num_units: int, num_tasks: int, seed: int
) -> None:
    folder = Folder(tmp_path_factory.mktemp("out"), num_units)
    rng = random.Random(seed)
    tasks = [folder.task(f"{i:016x}") for i in range(num_tasks)]
    taken: list[str] = []
    for _ in range(num_units + 3 * num_tasks):
        taken += names(rng.choice(tasks).take(rng.randint(1, 5)))
    for task in tasks:
        taken += names(task.take(num_units + 1))
    assert sorted(taken) == names(folder.units)


def test_what_is_done_or_has_failed_is_not_taken(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 4)
    folder.finish("000001")
    folder.ledger.write_failure("000002", {"unit": "000002"})
    task = folder.task("a" * 16)
    assert sorted(names(task.take(9))) == ["000000", "000003"]
    assert not task.is_waiting() and task.num_left() == 2


def test_the_units_of_the_dead_are_taken_over_and_their_drafts_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "LOOK_PAUSE_S", 0.0)
    folder = Folder(tmp_path, 3)
    dead, heir = folder.task("d" * 16), folder.task("e" * 16)
    assert len(dead.take(2)) == 2
    assert len(heir.take(9)) == 1
    assert heir.take(9) == [] and heir.is_waiting(), "it may be dead or alive"
    folder.clock.now_s += 31
    assert len(heir.take(9)) == 2
    assert not (folder.ledger.drafts_dir / ("d" * 16)).exists()
    assert (folder.ledger.drafts_dir / ("e" * 16)).exists()


def test_nobody_waits_for_the_living(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "LOOK_PAUSE_S", 0.0)
    folder = Folder(tmp_path, 2)
    folder.task("d" * 16).take(2)
    other = folder.task("e" * 16)
    assert other.take(1) == [] and other.is_waiting()
    write_lock(folder.locks_dir, "d" * 16, beat=2)
    assert other.take(1) == [] and not other.is_waiting()
    assert (folder.ledger.drafts_dir / ("d" * 16)).exists()


def test_what_was_given_back_is_free_at_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 5)
    first = folder.task("d" * 16)
    taken = names(first.take(4))
    first.note(Event(kind="done", unit=taken[0]))
    folder.finish(taken[0])
    first.give_back()
    assert first.take(1) == []
    assert sorted([*names(folder.task("e" * 16).take(9)), taken[0]]) == names(folder.units)


def test_a_task_whose_time_is_over_takes_no_more(tmp_path: Path) -> None:
    task = Folder(tmp_path, 5).task("d" * 16)
    task.take(1)
    task.close()
    assert task.take(1) == [] and not task.is_waiting() and task.is_closed_early


def test_a_unit_at_which_tasks_die_comes_last_and_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "LOOK_PAUSE_S", 0.0)
    folder = Folder(tmp_path, 3)
    for number in range(1, MAX_DEATHS + 1):
        Claims(folder.claims_dir, f"{number:016x}").take("000001", number)
    task = folder.task("f" * 16)
    assert "000001" not in names(task.take(9))
    folder.clock.now_s += 31
    assert task.take(9) == []
    assert [event.unit for event in folder.events] == ["000001"]
    assert folder.ledger.failure_names() == {"000001"}
