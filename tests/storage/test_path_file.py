"""An object read as a file: any seeks and reads give the bytes that a real file gives."""

from __future__ import annotations

import io
import random

import pytest

from shardmill.storage import objects
from shardmill.storage.path import open_reader

CONTENT = random.Random(3).randbytes(3_000_000)


def test_seeks_and_reads_are_those_of_a_file(store_url: str) -> None:
    objects.put(f"{store_url}/x", CONTENT)
    dice, real = random.Random(1), io.BytesIO(CONTENT)
    with open_reader(f"{store_url}/x") as file:
        for _ in range(200):
            if dice.random() < 0.4:
                offset = dice.randrange(len(CONTENT) + 1000)
                assert file.seek(offset) == real.seek(offset)
            size = dice.choice([0, 1, 100, 70_000, 400_000])
            assert file.read(size) == real.read(size)
            assert file.tell() == real.tell()
        assert file.seek(-10, io.SEEK_END) == len(CONTENT) - 10
        assert file.read() == CONTENT[-10:]


def test_lines_come_whole(store_url: str) -> None:
    lines = [b"%d %s\n" % (n, b"x" * (n % 977)) for n in range(3000)]
    objects.put(f"{store_url}/x", b"".join(lines))
    with open_reader(f"{store_url}/x") as file:
        assert list(file) == lines


def test_what_is_not_there_is_said_when_it_is_opened(store_url: str) -> None:
    with pytest.raises(FileNotFoundError):
        open_reader(f"{store_url}/x")
