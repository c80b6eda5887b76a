"""Ids in a store: any slices are those of the array, in order or not, from one or more threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from faulty_proxy import faulty_proxy

from shardmill.shards.tokens import file as remoteids
from shardmill.shards.tokens.file import RemoteIds
from shardmill.storage import objects
from shardmill.storage.blob import RemoteBlob

IDS = np.random.default_rng(1).integers(0, 1 << 30, 200_000, np.int32)


@pytest.fixture
def ids(store_url: str, monkeypatch: pytest.MonkeyPatch) -> RemoteIds:
    monkeypatch.setattr(remoteids, "BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(remoteids, "NEAR_BYTES", 1 << 13)
    objects.put(f"{store_url}/a.bin", IDS.tobytes())
    return RemoteIds(RemoteBlob(f"{store_url}/a.bin"), IDS.dtype)


def test_it_looks_like_the_array(ids: RemoteIds) -> None:
    assert (ids.size, len(ids), ids.nbytes, ids.itemsize) == (200_000, 200_000, 800_000, 4)
    for wanted in (slice(0, 0), slice(5, 3), slice(199_990, 300_000), slice(0, 200_000)):
        assert np.array_equal(ids[wanted], IDS[wanted])
    with pytest.raises(ValueError, match="without a step"):
        ids[0:10:2]


def test_rows_in_order_at_random_and_announced_are_right(ids: RemoteIds) -> None:
    dice, start = random.Random(3), 0
    while start < 150_000:
        length = dice.choice([1, 100, 3000, 40_000])
        assert np.array_equal(ids[start : start + length], IDS[start : start + length])
        start += length
    places = [(dice.randrange(190_000), dice.randrange(1, 5000)) for _ in range(60)]
    ids.prefetch(places[:30])
    for first, length in places:
        assert np.array_equal(ids[first : first + length], IDS[first : first + length])


def test_threads_read_the_same(ids: RemoteIds) -> None:
    def read(start: int) -> bool:
        return np.array_equal(ids[start : start + 2000], IDS[start : start + 2000])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(0, 198_000, 2000)))


def test_neighbours_share_requests(
    store_env: str, store_url: str, ids: RemoteIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_proxy(store_env, lambda method, path: None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        fresh = RemoteIds(RemoteBlob(f"{store_url}/a.bin"), IDS.dtype)
        for start in range(0, 200_000, 500):
            fresh[start : start + 500]
    # 400 rows in 13 blocks, and the first row by itself.
    assert sum(method == "GET" for method, _ in proxy.requests) <= 15
