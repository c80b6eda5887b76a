"""Locks: who is refused, who is taken over, and what clocks have to do with it (nothing)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from other_tasks import Clock, write_lock

from shardmill.errors import LockedError
from shardmill.running.lock import (
    LOCK_BYTES,
    FolderLock,
    HeartbeatWatch,
    LockTiming,
    describe_owner,
    is_running,
    owner_page,
    parse_owner,
    part_lock_name,
    read_locks,
    read_owner,
    task_lock_name,
    this_process,
)
from shardmill.storage import objects
from shardmill.storage.path import as_path

FAST = LockTiming(beat_s=0.05, stale_s=0.6)


def make_lock(folder: Path, part: tuple[int, int] = (1, 1), **options: object) -> FolderLock:
    token = f"token-{threading.get_ident()}-{time.monotonic_ns()}"
    options = {"timing": FAST} | options
    return FolderLock(folder, part_lock_name(part), token, **options)  # type: ignore[arg-type]


def leave_lock(folder: Path, **changes: object) -> Path:
    """Leave a lock behind as a dead process would, and return its path."""
    lock = make_lock(folder)
    lock.__enter__()
    content = json.loads(lock.path.read_text())
    lock.__exit__(None, None, None)
    lock.path.write_text(json.dumps(content | changes))
    return lock.path


@contextmanager
def beating(path: Path) -> Iterator[None]:
    """Raise the counter of a lock, as its owner on another host would."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            content = json.loads(path.read_text())
            content["beat"] += 1
            path.write_text(json.dumps(content))

    thread = threading.Thread(target=beat)
    thread.start()
    yield
    over.set()
    thread.join()


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_lock_is_there_while_it_is_held(tmp_path: Path) -> None:
    with make_lock(tmp_path) as lock:
        assert [path.name for path in tmp_path.iterdir()] == ["part-1-of-1.json"]
        first = read_owner(lock.path)
        time.sleep(0.4)
        second = read_owner(lock.path)
        assert first and second and second.beat > first.beat and second.pid == os.getpid()
        [state] = read_locks(tmp_path)
        assert state.alive and state.name == "part-1-of-1"
    assert list(tmp_path.iterdir()) == []


def test_a_living_owner_is_named_at_once(tmp_path: Path) -> None:
    with make_lock(tmp_path, timing=LockTiming()):
        began = time.monotonic()
        with (
            pytest.raises(LockedError, match=f"process {os.getpid()} on .*part-1-of-1"),
            make_lock(tmp_path, timing=LockTiming()),
        ):
            pass
        assert time.monotonic() - began < LockTiming().stale_s / 2


def test_parts_of_one_split_run_together(tmp_path: Path) -> None:
    with make_lock(tmp_path, (1, 3)), make_lock(tmp_path, (2, 3)), make_lock(tmp_path, (3, 3)):
        for overlapping in ((2, 3), (1, 2), (1, 1)):
            with pytest.raises(LockedError), make_lock(tmp_path, overlapping):
                pass
    with make_lock(tmp_path, (1, 2)):
        pass


def test_a_dead_process_is_taken_over_at_once(tmp_path: Path) -> None:
    leave_lock(tmp_path, pid=dead_pid())
    began = time.monotonic()
    with make_lock(tmp_path, timing=LockTiming()):
        assert time.monotonic() - began < LockTiming().stale_s / 2


def test_a_process_id_that_was_given_to_another_is_dead(tmp_path: Path) -> None:
    leave_lock(tmp_path, started="1")
    with make_lock(tmp_path, timing=LockTiming()):
        pass


def test_a_lock_of_another_host_that_beats_is_respected(tmp_path: Path) -> None:
    path = leave_lock(tmp_path, host="elsewhere", place="elsewhere")
    waits: list[str] = []
    with (
        beating(path),
        pytest.raises(LockedError, match="on elsewhere"),
        make_lock(tmp_path, on_wait=waits.append, timing=LockTiming(beat_s=0.05, stale_s=30)),
    ):
        pass
    assert "elsewhere" in waits[0]


def test_a_lock_of_another_host_that_stands_still_is_taken_over(tmp_path: Path) -> None:
    path = leave_lock(tmp_path, host="elsewhere", place="elsewhere", token="theirs")
    began = time.monotonic()
    with make_lock(tmp_path) as lock:
        assert time.monotonic() - began >= FAST.stale_s
        owner = read_owner(path)
        assert owner and owner.token != "theirs" and not lock.lost


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_clock_that_jumps_takes_no_lock_away(tmp_path: Path, jump_s: int) -> None:
    path = leave_lock(tmp_path, host="elsewhere", place="elsewhere")
    over = threading.Event()

    def jump() -> None:
        while not over.wait(0.01):
            os.utime(path, (time.time() + jump_s, time.time() + jump_s))

    thread = threading.Thread(target=jump)
    thread.start()
    with (
        beating(path),
        pytest.raises(LockedError),
        make_lock(tmp_path, timing=LockTiming(beat_s=0.05, stale_s=30)),
    ):
        pass
    over.set()
    thread.join()


def test_a_stopped_process_here_is_taken_over(tmp_path: Path) -> None:
    """It lives, but its counter stands still and its file is old."""
    path = leave_lock(tmp_path)
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    with make_lock(tmp_path):
        pass


def test_a_lock_without_content_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "part-1-of-1.json").touch()
    with make_lock(tmp_path):
        pass


def test_it_waits_for_a_owner_that_lets_go(tmp_path: Path) -> None:
    with make_lock(tmp_path) as first:
        timer = threading.Timer(0.3, lambda: first.__exit__(None, None, None))
        timer.start()
        with make_lock(tmp_path, wait=True) as second:
            assert not second.lost
        timer.join()


def test_a_lock_that_was_taken_over_is_lost_and_left_alone(tmp_path: Path) -> None:
    with make_lock(tmp_path) as lock:
        content = json.loads(lock.path.read_text())
        lock.path.write_text(json.dumps(content | {"token": "theirs"}))
        wait_for(lambda: lock.lost)
    owner = read_owner(lock.path)
    assert owner and owner.token == "theirs"


def test_a_lock_that_was_removed_by_mistake_comes_back(tmp_path: Path) -> None:
    with make_lock(tmp_path) as lock:
        lock.path.unlink()
        wait_for(lock.path.exists)
        assert not lock.lost


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_of_many_only_one_holds_it_at_a_time(tmp_path: Path) -> None:
    leave_lock(tmp_path, pid=dead_pid())
    inside = 0
    most = 0
    num_held = 0
    guard = threading.Lock()

    def contend() -> None:
        nonlocal inside, most, num_held
        with make_lock(tmp_path, wait=True, timing=LockTiming()):
            with guard:
                inside += 1
                num_held += 1
                most = max(most, inside)
            time.sleep(0.01)
            with guard:
                inside -= 1

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, num_held) == (1, 8)


def test_a_lock_in_a_store_refuses_beats_and_lets_go(store_url: str) -> None:
    folder = as_path(store_url)
    with make_lock(folder) as lock:
        first = read_owner(lock.path)
        with pytest.raises(LockedError, match=f"process {os.getpid()}"), make_lock(folder):
            pass
        while read_owner(lock.path) == first:
            time.sleep(0.02)
        assert not lock.lost and [state.alive for state in read_locks(folder)] == [True]
    assert read_locks(folder) == []


def test_a_dead_lock_in_a_store_is_taken_over_and_a_lost_one_noticed(store_url: str) -> None:
    folder = as_path(store_url)
    stopped = make_lock(folder, timing=LockTiming(beat_s=0.4, stale_s=9))
    stopped.__enter__()
    owner = json.loads(stopped.path.read_bytes())
    objects.put(str(stopped.path), json.dumps(owner | {"pid": dead_pid()}).encode())
    with make_lock(folder) as lock:
        while not stopped.lost:
            time.sleep(0.02)
        time.sleep(0.2)
        assert not lock.lost
    stopped.__exit__(None, None, None)
    assert read_locks(folder) == []


def test_many_dead_tasks_of_other_machines_are_looked_at_together(tmp_path: Path) -> None:
    for number in range(50):
        write_lock(tmp_path, f"{number:016x}", beat=number)
    timing = LockTiming(beat_s=0.1, stale_s=0.5)
    began_s = time.monotonic()
    with FolderLock(tmp_path, "part-1-of-1", "me", timing=timing):
        assert time.monotonic() - began_s < 50 * 0.5 / 2
    assert list(tmp_path.iterdir()) == []


def test_one_living_task_is_enough_to_refuse(tmp_path: Path) -> None:
    for number in range(5):
        write_lock(tmp_path, f"{number:016x}", beat=number)
    quick = LockTiming(beat_s=0.05, stale_s=0.5)
    with FolderLock(tmp_path, "task-alive", "them", timing=quick), pytest.raises(LockedError):
        FolderLock(tmp_path, "part-1-of-1", "me", timing=quick).__enter__()


def test_tasks_run_together_and_exclude_parts(tmp_path: Path) -> None:
    quick = LockTiming(beat_s=0.05, stale_s=0.3)
    with (
        FolderLock(tmp_path, "task-a", "a", timing=quick),
        FolderLock(tmp_path, "task-b", "b", timing=quick),
        pytest.raises(LockedError),
    ):
        FolderLock(tmp_path, "part-2-of-3", "c", timing=quick).__enter__()
    with FolderLock(tmp_path, "part-2-of-3", "c", timing=quick), pytest.raises(LockedError):
        FolderLock(tmp_path, "task-a", "a", timing=quick).__enter__()


def test_a_page_reads_back_and_has_one_length() -> None:
    owner = this_process("token")
    for beat in (0, 7, 10**12):
        page = owner_page(replace(owner, beat=beat))
        assert len(page) == LOCK_BYTES and parse_owner(page) == replace(owner, beat=beat)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"{}", b"\xff", owner_page(this_process("t")).replace(b":", b"::")),
        owner_page(replace(this_process("t"), pid=1 << 40)),
        owner_page(replace(this_process("t"), token=["t"])),  # type: ignore[arg-type]
        owner_page(replace(this_process("t"), place=None)),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_lock_is_nobody(tmp_path: Path, content: bytes) -> None:
    assert parse_owner(content) is None
    (tmp_path / "part-1-of-1.json").write_bytes(content)
    assert read_owner(tmp_path / "part-1-of-1.json") is None
    assert read_locks(tmp_path) == []


@pytest.mark.parametrize("pid", [0, -1, "7", None])
def test_a_process_id_that_is_none_is_nobody(pid: object) -> None:
    assert parse_owner(owner_page(replace(this_process("t"), pid=pid))) is None  # type: ignore[arg-type]


def test_this_process_lives_and_one_that_had_its_id_does_not() -> None:
    assert is_running(this_process("t"))
    assert not is_running(replace(this_process("t"), started="1"))


def test_a_zombie_does_not_live() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    stat_path = Path(f"/proc/{process.pid}/stat")
    while stat_path.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    started = stat_path.read_text().rpartition(")")[2].split()[19]
    owner = replace(this_process("t"), pid=process.pid, started=started)
    os.kill(process.pid, 0)
    assert not is_running(owner)
    process.wait()
    assert not is_running(owner)


def test_an_onlooker_is_told_who_and_how_long_ago(tmp_path: Path) -> None:
    path = tmp_path / "part-1-of-1.json"
    path.write_bytes(owner_page(this_process("t")))
    os.utime(path, (time.time() - 100, time.time() - 100))
    [state] = read_locks(tmp_path)
    assert state.alive and 99 < state.age_s < 130
    assert f"process {os.getpid()} on" in describe_owner(path, state.owner)
    path.write_bytes(owner_page(replace(this_process("t"), place="elsewhere")))
    os.utime(path, (time.time() - 100, time.time() - 100))
    assert [state.alive for state in read_locks(tmp_path)] == [False]
    assert "unknown run" in describe_owner(path, None)


def make_watch(tmp_path: Path) -> tuple[HeartbeatWatch, Clock]:
    clock = Clock()
    return HeartbeatWatch(tmp_path, LockTiming(beat_s=3, stale_s=30), clock), clock


def test_a_counter_that_moves_is_alive(tmp_path: Path) -> None:
    watch, clock = make_watch(tmp_path)
    for beat in range(20):
        write_lock(tmp_path, "a", beat=beat)
        clock.now_s += 29
        watch.look(["a"])
        assert not watch.is_dead("a")
        assert watch.is_alive("a") == (beat > 0)


def test_a_counter_that_stands_still_is_dead_and_stays_so(tmp_path: Path) -> None:
    watch, clock = make_watch(tmp_path)
    write_lock(tmp_path, "a", beat=7)
    watch.look(["a"])
    clock.now_s += 29
    watch.look(["a"])
    assert not watch.is_dead("a") and not watch.is_alive("a")
    clock.now_s += 2
    watch.look(["a"])
    assert watch.is_dead("a")
    write_lock(tmp_path, "a", beat=8)
    watch.look(["a"])
    assert watch.is_dead("a"), "its drafts are gone by now: it must not be believed again"


def test_a_lock_that_is_not_there_is_dead_only_after_a_while(tmp_path: Path) -> None:
    """A shared file system may show a new file late."""
    watch, clock = make_watch(tmp_path)
    watch.look(["a"])
    assert not watch.is_dead("a")
    write_lock(tmp_path, "a", beat=0)
    clock.now_s += 31
    watch.look(["a"])
    assert not watch.is_dead("a")
    (tmp_path / f"{task_lock_name('a')}.json").unlink()
    watch.look(["a"])
    clock.now_s += 31
    watch.look(["a"])
    assert watch.is_dead("a")


def test_the_clocks_of_others_do_not_matter(tmp_path: Path) -> None:
    """The file's time is of 1970, then of the far future."""
    watch, clock = make_watch(tmp_path)
    for beat, time_s in enumerate((0, 4_000_000_000, 5)):
        write_lock(tmp_path, "a", beat=beat)
        os.utime(tmp_path / f"{task_lock_name('a')}.json", (time_s, time_s))
        clock.now_s += 20
        watch.look(["a"])
        assert not watch.is_dead("a")


def test_a_process_of_this_machine_that_is_gone_is_dead_at_once(tmp_path: Path) -> None:
    watch, _ = make_watch(tmp_path)
    here = this_process("a").place
    write_lock(tmp_path, "a", beat=1, place=here)
    watch.look(["a"])
    assert not watch.is_dead("a")
    owner = replace(this_process("b"), started="1")
    (tmp_path / f"{task_lock_name('b')}.json").write_text(json.dumps(asdict(owner)))
    watch.look(["b"])
    assert watch.is_dead("b")
