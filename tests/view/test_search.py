from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from view_folders import HOSTILE_KEY

from shardmill.view import query as scan
from shardmill.view.context import Context
from shardmill.view.query import Query
from shardmill.view.search import search


def find(context: Context, wanted: str) -> list[dict[str, Any]]:
    """Return all hits, asking on as the page does."""
    hits, cursor = list[dict[str, Any]](), {"item": "0", "shard": "0"}
    for _ in range(1000):
        answer = search(context, Query({"q": wanted, **cursor}))
        hits += answer["hits"]
        if answer["cursor"] is None:
            return hits
        cursor = dict(zip(("item", "shard"), map(str, answer["cursor"])))
    raise AssertionError("the search does not end")


@pytest.mark.parametrize("seconds", [60.0, 1e-9])
def test_a_key_is_found_in_samples_and_tokens(
    context: Context, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(scan.Budget.__init__, "__defaults__", (seconds,))
    found = {(hit["kind"], hit["id"]): hit["number"] for hit in find(context, "chats-00000016")}
    assert found[("sample", "chats")] == found[("row", "tokens")] == 16
    assert ("row", "packs") in found


def test_sources_reasons_rejects_and_names_are_found(context: Context) -> None:
    assert {hit["kind"] for hit in find(context, "pairs")} >= {"item", "source", "sample"}
    assert ("reason", "missing file") in {(h["kind"], h["text"]) for h in find(context, "missing")}
    rejects = [hit for hit in find(context, "unicorn") if hit["kind"] == "reject"]
    assert [hit["text"] for hit in rejects] == ["pairs-00000007"]
    assert rejects[0]["unit"] == "000000"


def test_rows_are_found_by_their_number(context: Context) -> None:
    rows = [hit for hit in find(context, "00000003") if hit["kind"] == "row"]
    assert {hit["text"] for hit in rows} == {"chats-00000003"}


def test_a_broken_shard_hides_only_its_own_keys(pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline / "pairs", tmp_path / "pairs")
    (tmp_path / "pairs" / "shards" / "000001.idx").write_bytes(b"garbage")
    context = Context(tmp_path)
    assert [hit["number"] for hit in find(context, "pairs-00000033")] == [31]
    assert find(context, "pairs-00000009") == []


def test_nothing_is_found_for_nothing(context: Context) -> None:
    assert find(context, "   ") == []
    assert find(context, "no such thing anywhere") == []


def test_hostile_keys_are_found_as_they_are(hostile: Path) -> None:
    hits = find(Context(hostile), "onerror")
    assert hits and all(HOSTILE_KEY in h["text"] for h in hits if h["kind"] == "sample")
