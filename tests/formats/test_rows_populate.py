"""Asking for pages changes nothing but when they come."""

from __future__ import annotations

import mmap
import platform
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from shardmill.formats.rows import populate
from shardmill.shards.tokens.ids import map_bytes


def can_populate() -> bool:
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    return (
        bool(version) and sys.platform == "linux" and tuple(map(int, version.groups())) >= (5, 14)
    )


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (3000, 9000), (9999, 10_000)])
def test_what_is_mapped_is_what_is_in_the_file(tmp_path: Path, start: int, stop: int) -> None:
    wanted = np.arange(10_000, dtype="<u2")
    (tmp_path / "x.bin").write_bytes(wanted.tobytes())
    flat = np.frombuffer(map_bytes(tmp_path / "x.bin"), "<u2")
    populate(flat, start, stop)
    assert flat[start:stop].tolist() == wanted[start:stop].tolist()


def test_arrays_of_memory_are_left_alone() -> None:
    populate(np.arange(5), 0, 5)
    populate(np.frombuffer(b"12", np.uint8), 0, 2)


@pytest.mark.skipif(not can_populate(), reason="needs Linux 5.14, which can be asked for pages")
def test_pages_are_there_before_they_are_touched(tmp_path: Path) -> None:
    num_pages = 1000
    (tmp_path / "x.bin").write_bytes(bytes(num_pages * mmap.PAGESIZE))
    flat = np.frombuffer(map_bytes(tmp_path / "x.bin"), "<u2")
    assert resident_kb(tmp_path / "x.bin") == 0
    populate(flat, 0, len(flat))
    assert resident_kb(tmp_path / "x.bin") == num_pages * mmap.PAGESIZE // 1024


def resident_kb(path: Path) -> int:
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    next(line for line in lines if line.endswith(str(path)))
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
