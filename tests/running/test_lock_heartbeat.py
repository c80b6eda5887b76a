"""Who lives: by counters that move, never by comparing clocks."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from other_tasks import Clock, write_lock

from shardmill.running.lock import HeartbeatWatch, LockTiming, task_lock_name, this_process


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
