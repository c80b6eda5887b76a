"""The index has Megatron's bytes."""

from __future__ import annotations

import random
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from faulty_proxy import faulty_proxy

from shardmill.errors import FormatError
from shardmill.shards.tokens import ids as ids_module
from shardmill.shards.tokens.ids import RemoteIds, open_megatron_index, write_megatron_index
from shardmill.storage import objects
from shardmill.storage.blob import RemoteBlob


def test_the_bytes_are_those_of_the_layout(tmp_path: Path) -> None:
    path = tmp_path / "a.idx"
    with path.open("wb") as file:
        write_megatron_index(file, np.dtype("<u2"), np.array([3, 0, 5]), np.array([0, 2]))
    assert path.read_bytes() == b"".join(
        [
            b"MMIDIDX\x00\x00",
            struct.pack("<Q", 1),
            struct.pack("<B", 8),
            struct.pack("<QQ", 3, 3),
            struct.pack("<3i", 3, 0, 5),
            struct.pack("<3q", 0, 6, 6),
            struct.pack("<3q", 0, 2, 3),
        ]
    )
    index = open_megatron_index(path)
    assert index.dtype == np.dtype("<u2")
    assert index.lengths.tolist() == [3, 0, 5]
    assert index.offsets.tolist() == [0, 6, 6]
    assert index.documents.tolist() == [0, 2, 3]


def test_an_empty_index_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.idx"
    with path.open("wb") as file:
        write_megatron_index(file, np.dtype("<i4"), np.array([], int), np.array([], int))
    assert open_megatron_index(path).documents.tolist() == [0]


@pytest.mark.parametrize(
    ("at", "value"), [(0, 0), (9, 2), (17, 9), (17, 0), (18, 4), (24, 255), (26, 9)]
)
def test_a_wrong_header_is_an_error(tmp_path: Path, at: int, value: int) -> None:
    path = tmp_path / "a.idx"
    with path.open("wb") as file:
        write_megatron_index(file, np.dtype("<u2"), np.array([3]), np.array([0]))
    raw = bytearray(path.read_bytes())
    raw[at] = value
    path.write_bytes(raw)
    with pytest.raises(FormatError):
        open_megatron_index(path)


IDS = np.random.default_rng(1).integers(0, 1 << 30, 200_000, np.int32)


@pytest.fixture
def ids(store_url: str, monkeypatch: pytest.MonkeyPatch) -> RemoteIds:
    monkeypatch.setattr(ids_module, "BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(ids_module, "NEAR_BYTES", 1 << 13)
    objects.put(f"{store_url}/a.bin", IDS.tobytes())
    return RemoteIds(RemoteBlob(f"{store_url}/a.bin"), IDS.dtype)


def test_it_looks_like_the_array(ids: RemoteIds) -> None:
    assert (ids.size, len(ids), ids.nbytes, ids.itemsize) == (200_000, 200_000, 800_000, 4)
    for wanted in (slice(0, 0), slice(5, 3), slice(199_990, 300_000), slice(0, 200_000)):
        assert np.array_equal(ids[wanted], IDS[wanted])
    with pytest.raises(ValueError, match="without a step"):
        ids[0:10:2]


def test_rows_in_order_at_random_and_announced_are_right(ids: RemoteIds) -> None:
    rng, start = random.Random(3), 0
    while start < 150_000:
        length = rng.choice([1, 100, 3000, 40_000])
        assert np.array_equal(ids[start : start + length], IDS[start : start + length])
        start += length
    places = [(rng.randrange(190_000), rng.randrange(1, 5000)) for _ in range(60)]
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
