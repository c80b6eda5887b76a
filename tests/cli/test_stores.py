"""Commands whose folders lie in a store: the same bytes as local ones, and errors that help."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from faulty_proxy import faulty_proxy
from servers import ACCESS_KEY, SECRET_KEY

from shardmill.storage import objects

Shardmill = Callable[..., subprocess.CompletedProcess[str]]

# Of each folder, what does not depend on where its input lies.
PARTS = ("shards/", "rejects/")
PIPELINE = (
    ("ingest", "data/pairs.jsonl", "{}/pairs", "--per-shard", "12"),
    ("filter", "{}/pairs", "{}/small", "--filter", "aspect_ratio,max_ratio=1.4"),
    ("tokenize", "data/texts.jsonl", "{}/tokens", "--block-size", "64", "--per-shard", "4"),
    ("plan", "{}/tokens", "{}/packs.plan", "--capacity", "256", "--block", "2"),
    ("pack", "{}/tokens", "{}/packs.plan", "{}/packs"),
    ("measure", "{}/pairs", "{}/lengths", "--model", "llava", "--estimate"),
)


def run_pipeline(shardmill: Shardmill, place: str) -> None:
    for words in PIPELINE:
        flags = () if words[0] == "plan" else ("--workers", "0")
        shardmill(*(word.format(place) for word in words), *flags)


def contents(files: Mapping[str, bytes]) -> dict[str, bytes]:
    kept = ("pairs/receipts/", "tokens/receipts/")
    return {
        name: content
        for name, content in files.items()
        if name.partition("/")[2].startswith(PARTS)
        or name.startswith(kept)
        or name.endswith((".plan", "lengths.bin"))
    }


def test_every_stage_writes_the_same_bytes_into_a_store(
    shardmill: Shardmill, store_url: str, tmp_path: Path
) -> None:
    run_pipeline(shardmill, "here")
    run_pipeline(shardmill, store_url)
    here = tmp_path / "here"
    local = {
        str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*") if path.is_file()
    }
    names = [info.path for info in objects.list_all(store_url)]
    remote = {name: objects.get(f"{store_url}/{name}") for name in names}
    assert contents(remote) == contents(local)
    assert sum(name.startswith("packs/") for name in contents(local)) >= 3
    again = shardmill(
        "pack", f"{store_url}/tokens", f"{store_url}/packs.plan", f"{store_url}/packs"
    )
    assert "nothing to do" in again.stdout
    assert "is sound" in shardmill("check", f"{store_url}/packs").stdout
    assert "of 10" in shardmill("show", f"{store_url}/tokens").stdout
    why = shardmill(
        "why", f"{store_url}/packs.plan", "--data", f"{store_url}/tokens", "--step", "0"
    )
    assert f"{store_url}/tokens/shards/" in why.stdout


def test_tars_tables_and_folders_are_ingested_from_a_store(
    shardmill: Shardmill, store_url: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for path in data.rglob("*"):
        if path.is_file():
            objects.put(f"{store_url}/in/{path.relative_to(data)}", path.read_bytes())
    for photo in ("cat", "rocket"):
        content = (data / "photos" / f"{photo}.jpg").read_bytes()
        for place in (f"album/{photo}.jpg", f"album/more/{photo}.jpg"):
            objects.put(f"{store_url}/{place}", content)
            objects.put(f"{store_url}/{place[:-4]}.txt", f"A {photo}.".encode())
    table = json.loads(
        shardmill(
            "ingest", f"{store_url}/in/pairs.jsonl", "pairs", "--json", "--workers", "0"
        ).stdout
    )
    assert table["num_kept"] == 32
    album = json.loads(
        shardmill("ingest", f"{store_url}/album", "album", "--json", "--workers", "0").stdout
    )
    assert (album["num_shards"], album["num_in"], album["num_kept"]) == (1, 4, 4)
    objects.put_file(f"{store_url}/t/a.tar", tmp_path / "pairs" / "shards" / "000000.tar")
    tars = json.loads(
        shardmill("ingest", f"{store_url}/t/*.tar", "tars", "--json", "--workers", "0").stdout
    )
    assert tars["num_kept"] == 32
    assert "a/pairs-00000000" in shardmill("show", "tars", "-n", "1").stdout


@pytest.mark.parametrize(
    ("harm", "advice"),
    [
        ("denied", "no permission"),
        ("expired", "credential has expired"),
        ("region", "another region"),
        ("no bucket", "no such bucket"),
        ("503", "does not answer"),
    ],
)
def test_a_store_that_refuses_is_an_error_that_says_what_to_do(
    shardmill: Shardmill,
    store_env: str,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    harm: str,
    advice: str,
) -> None:
    monkeypatch.setenv("SHARDMILL_STORE_PATIENCE_S", "0.3")
    with faulty_proxy(store_env, lambda method, path: harm) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        failed = shardmill("ingest", "data/pairs.jsonl", f"{store_url}/out", code=2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store_env)
    assert advice in failed.stderr
    assert ACCESS_KEY not in failed.stderr and SECRET_KEY not in failed.stderr
    assert list(objects.list_all(store_url)) == []


def test_a_bucket_that_vanishes_leaves_nothing_that_a_reader_believes(
    shardmill: Shardmill, store_env: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDMILL_STORE_PATIENCE_S", "0.3")
    ingest = ("ingest", "data/pairs.jsonl", f"{store_url}/out", "--per-shard", "6")
    num_puts = 0

    def choose(method: str, path: str) -> str | None:
        nonlocal num_puts
        num_puts += method == "PUT" and "/shards/" in path
        return "no bucket" if num_puts > 4 else None

    with faulty_proxy(store_env, choose) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        failed = shardmill(*ingest, "--workers", "1", code=2)
        assert "no such bucket" in failed.stdout + failed.stderr
    monkeypatch.setenv("AWS_ENDPOINT_URL", store_env)
    unread = shardmill("show", f"{store_url}/out", code=2)
    assert "is not finished" in unread.stderr and "Run the command" in unread.stderr
    assert "is complete" in shardmill(*ingest, "--workers", "0").stdout
    assert "is sound" in shardmill("check", f"{store_url}/out").stdout


def test_what_is_not_there_is_said_by_its_url(shardmill: Shardmill, store_url: str) -> None:
    assert f"{store_url}/none" in shardmill("status", f"{store_url}/none", code=2).stderr
    absent = shardmill("plan", f"{store_url}/none", "x.plan", "--capacity", "9", code=2)
    assert "does not exist" in absent.stderr
    secret = shardmill("status", "https://me:hunter2@host/x", code=2)
    assert "hunter2" not in secret.stderr and "environment" in secret.stderr
    assert "unknown scheme" in shardmill("status", "ftp://host/x", code=2).stderr
    web = shardmill("ingest", "data/pairs.jsonl", "http://127.0.0.1:9/out", code=2)
    assert "a web server cannot be written to" in web.stderr
