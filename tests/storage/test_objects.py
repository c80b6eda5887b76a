"""Objects: put, get, create, exchange, list and delete keep their promises on a real store."""

from __future__ import annotations

import io
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardmill.errors import StoreError
from shardmill.storage import objects
from shardmill.storage.objects import open_reader


def test_of_many_that_create_one_succeeds(store_url: str) -> None:
    def create(number: int) -> bool:
        return objects.create(f"{store_url}/lock", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(16)))
    assert won.count(True) == 1
    assert objects.get(f"{store_url}/lock") == b"%d" % won.index(True)


def test_an_exchange_is_for_its_owner_only(store_url: str) -> None:
    objects.put(f"{store_url}/lock", b"mine 1")
    assert objects.exchange(f"{store_url}/lock", lambda c: c.startswith(b"mine"), b"mine 2")
    assert not objects.exchange(f"{store_url}/lock", lambda c: c.startswith(b"yours"), b"yours 1")
    assert objects.get(f"{store_url}/lock") == b"mine 2"
    with pytest.raises(FileNotFoundError):
        objects.exchange(f"{store_url}/none", lambda c: True, b"")


def test_listings_have_names_sizes_and_order(store_url: str) -> None:
    names = ["a/2", "a/10", "b", "a.txt"]
    for name in names:
        objects.put(f"{store_url}/{name}", name.encode())
    found = list(objects.list_all(store_url))
    assert [info.path for info in found] == sorted(names)
    assert [info.num_bytes for info in found] == [len(name) for name in sorted(names)]
    folders, here = objects.list_here(store_url)
    assert folders == ["a"] and [info.path for info in here] == ["a.txt", "b"]
    assert list(objects.list_all(f"{store_url}/nothing")) == []
    # A folder is not what merely begins like it.
    assert [info.path for info in objects.list_all(f"{store_url}/a")] == ["10", "2"]


def test_deleting_does_not_mind_what_is_gone(store_url: str) -> None:
    urls = [f"{store_url}/{n}" for n in range(5)]
    for url in urls[::2]:
        objects.put(url, b"")
    objects.delete(urls)
    objects.delete([])
    assert list(objects.list_all(store_url)) == []


def test_what_is_gone_is_not_found(store_url: str) -> None:
    for look in (objects.get, objects.look):
        with pytest.raises(FileNotFoundError):
            look(f"{store_url}/none")
    with pytest.raises(StoreError, match="no such bucket"):
        list(objects.list_all("s3://absent/x"))


CONTENT = random.Random(3).randbytes(3_000_000)


def test_seeks_and_reads_are_those_of_a_file(store_url: str) -> None:
    objects.put(f"{store_url}/x", CONTENT)
    rng, real = random.Random(1), io.BytesIO(CONTENT)
    with open_reader(f"{store_url}/x") as file:
        for _ in range(200):
            if rng.random() < 0.4:
                offset = rng.randrange(len(CONTENT) + 1000)
                assert file.seek(offset) == real.seek(offset)
            size = rng.choice([0, 1, 100, 70_000, 400_000])
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
