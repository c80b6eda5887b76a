"""Receipts of a store: read once, again when they change, and never believed when they are gone."""

from __future__ import annotations

import pytest
from faulty_proxy import faulty_proxy

from shardmill.shards.ledger import read_receipt_files
from shardmill.storage import objects
from shardmill.storage.cache import scratch_root
from shardmill.storage.path import as_path

NAMES = [f"{n:03d}.json" for n in range(80)]


def test_only_what_is_new_is_fetched(
    store_env: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = as_path(store_url)
    for name in NAMES[:70]:
        objects.put(f"{store_url}/{name}", name.encode())
    with faulty_proxy(store_env, lambda method, path: None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)

        def fetched() -> list[str]:
            asked = [
                path.rpartition("/")[2] for _, path in proxy.requests if "list-type" not in path
            ]
            proxy.requests.clear()
            return sorted(asked)

        expected = [name.encode() for name in NAMES[:70]]
        assert list(read_receipt_files(folder, NAMES[:70])) == expected
        assert fetched() == NAMES[:70]
        assert list(read_receipt_files(folder, NAMES[:70])) == expected
        assert fetched() == []
        objects.put(f"{store_url}/{NAMES[3]}", b"another")
        objects.put(f"{store_url}/{NAMES[75]}", b"new")
        objects.delete([f"{store_url}/{NAMES[5]}"])
        proxy.requests.clear()
        found = dict(zip(NAMES, read_receipt_files(folder, NAMES)))
    assert found[NAMES[3]] == b"another" and found[NAMES[75]] == b"new"
    assert found[NAMES[5]] is None and found[NAMES[79]] is None
    assert found[NAMES[69]] == NAMES[69].encode()


def test_a_broken_cache_is_no_cache(store_url: str) -> None:
    for name in NAMES:
        objects.put(f"{store_url}/{name}", b"content")
    list(read_receipt_files(as_path(store_url), NAMES))
    (cache,) = (scratch_root() / "cache").iterdir()
    for rubbish in (b"\xff\xfe", b"[1]\n", b'["a", "b", 3]\n', b""):
        cache.write_bytes(rubbish)
        assert list(read_receipt_files(as_path(store_url), NAMES)) == [b"content"] * 80
