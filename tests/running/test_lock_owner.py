"""Who lives and who does not, seen from the same machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shardmill.running.lock import (
    LOCK_BYTES,
    describe_owner,
    is_running,
    owner_page,
    parse_owner,
    read_locks,
    read_owner,
    this_process,
)


def test_a_page_reads_back_and_has_one_length() -> None:
    owner = this_process("token")
    for beat in (0, 7, 10**12):
        page = owner_page(replace(owner, beat=beat))
        assert len(page) == LOCK_BYTES and parse_owner(page) == replace(owner, beat=beat)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"\xff", owner_page(this_process("t")).replace(b":", b"::")],
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
