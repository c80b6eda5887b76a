"""Groups of commits form while one is under way; draft folders are private and used again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from shardmill.model.stage import Draft, Tally, Unit
from shardmill.running.worker import (
    MAX_WAITING,
    MAX_WAITING_BYTES,
    Committer,
    DraftFolders,
    Finished,
)


def item(number: int, num_bytes: int = 0) -> Finished:
    unit = Unit(name=str(number), input={})
    return Finished(unit, Draft(Path()), Tally(), num_bytes, 0.0, 0.0)


def numbers(groups: Sequence[Sequence[Finished]]) -> list[int]:
    return [int(finished.unit.name) for group in groups for finished in group]


def test_all_are_committed_in_order_and_in_groups() -> None:
    groups: list[Sequence[Finished]] = []
    first_began, go_on = threading.Event(), threading.Event()

    def commit(group: Sequence[Finished]) -> None:
        groups.append(group)
        first_began.set()
        go_on.wait(30)

    with Committer(commit) as committer:
        committer.add(item(0))
        first_began.wait(30)
        for number in range(1, 30):
            committer.add(item(number))
        go_on.set()
    assert numbers(groups) == list(range(30))
    assert [len(group) for group in groups] == [1, 29]


def test_a_slow_disk_holds_up_the_work() -> None:
    go_on = threading.Event()
    num_added = 0

    with Committer(lambda group: go_on.wait(30) and None) as committer:

        def add_many() -> None:
            nonlocal num_added
            for number in range(3 * MAX_WAITING):
                committer.add(item(number))
                num_added += 1

        thread = threading.Thread(target=add_many)
        thread.start()
        thread.join(0.3)
        assert num_added <= MAX_WAITING
        go_on.set()
        thread.join()
        assert num_added == 3 * MAX_WAITING


def test_large_units_do_not_wait_for_others() -> None:
    groups: list[Sequence[Finished]] = []
    with Committer(groups.append) as committer:
        for number in range(3):
            committer.add(item(number, MAX_WAITING_BYTES + 1))
            assert numbers(groups) == list(range(number + 1))


def test_a_bug_in_the_commit_comes_out() -> None:
    def commit(group: Sequence[Finished]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Committer(commit) as committer:
        committer.add(item(0))
    with pytest.raises(ZeroDivisionError), Committer(commit) as committer:
        for number in range(10 * MAX_WAITING):
            committer.add(item(number))


def test_what_is_finished_is_committed_although_the_work_is_interrupted(tmp_path: Path) -> None:
    groups: list[Sequence[Finished]] = []
    with pytest.raises(KeyboardInterrupt), Committer(groups.append) as committer:
        for number in range(5):
            committer.add(item(number))
        raise KeyboardInterrupt
    assert numbers(groups) == list(range(5))


def test_folders_are_empty_and_not_shared(tmp_path: Path) -> None:
    folders = DraftFolders(tmp_path)
    first, second = folders.take(), folders.take()
    assert first != second and list(first.iterdir()) == list(second.iterdir()) == []


def test_an_empty_folder_is_used_again(tmp_path: Path) -> None:
    folders = DraftFolders(tmp_path)
    first = folders.take()
    folders.give_back(first)
    assert folders.take() == first


def test_what_was_left_in_a_folder_is_not_handed_on(tmp_path: Path) -> None:
    folders = DraftFolders(tmp_path)
    first = folders.take()
    (first / "folder").mkdir()
    (first / "folder" / "left").touch()
    folders.give_back(first)
    assert list(folders.take().iterdir()) == [] and not (first / "folder").exists()


def test_a_folder_that_is_gone_is_not_handed_out(tmp_path: Path) -> None:
    folders = DraftFolders(tmp_path)
    first = folders.take()
    first.rmdir()
    folders.give_back(first)
    assert folders.take().is_dir()
