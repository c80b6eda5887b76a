from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import lists, text
from invoked import invoke
from make_media import image
from view_folders import HOSTILE_KEY

from shardmill.errors import NotFound
from shardmill.shards.tar.index import IndexRows, index_of
from shardmill.view.answers import Budget, Query
from shardmill.view.context import AccessPolicy, Context, Folder
from shardmill.view.samples import (
    describe_sample,
    filter_samples,
    find_rejects,
    matching,
    search,
)

LETTERS = "abé/"


def cards_of(folder: Folder, number: int) -> list[dict[str, Any]]:
    """Return the card of one sample."""
    cards: list[dict[str, Any]] = filter_samples(
        folder, number, 1, source="", wanted="", budget=Budget(60)
    )["cards"]
    return cards


@given(
    keys=lists(text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=20),
    wanted=text(LETTERS, min_size=1, max_size=3),
)
def test_matching_keys_are_those_that_hold_the_text(keys: list[str], wanted: str) -> None:
    rows = IndexRows()
    for number, key in enumerate(keys):
        rows.add(key, number * 1024, ["json"], [512], [1])
        rows.describe((), 0, 0, "a" if number % 2 else "b")
    index = index_of(rows.arrays(Path("x"), end=len(keys) * 1024, num_bytes=len(keys) * 1024))
    fitting = [row for row, key in enumerate(keys) if wanted in key]
    assert matching(index, 0, "", wanted, 100) == fitting
    assert matching(index, 0, "a", wanted, 100) == [row for row in fitting if row % 2]
    assert matching(index, 1, "", wanted, 2) == [row for row in fitting if row >= 1][:2]
    assert matching(index, 0, "no such source", wanted, 2) == []


def test_pages_together_hold_every_sample_once(context: Context) -> None:
    folder, found, at = context.folder("pairs"), list[int](), 0
    while at is not None:
        page = filter_samples(folder, at, 7, source="", wanted="", budget=Budget(60))
        found += [card["number"] for card in page["cards"]]
        at = page["next"]
    assert found == list(range(32))


def test_a_search_that_runs_out_of_time_says_where_to_go_on(context: Context) -> None:
    folder = context.folder("pairs")
    page = filter_samples(folder, 0, 50, source="", wanted="00000033", budget=Budget(0))
    assert page["cards"] == [] and page["next"] == 0
    page = filter_samples(folder, 0, 50, source="", wanted="00000033", budget=Budget(60))
    assert [card["key"] for card in page["cards"]] == ["pairs-00000033"]
    assert page["next"] is None


def test_a_sample_says_what_it_is_and_where_it_came_from(context: Context) -> None:
    sample = describe_sample(context.folder("chats"), 16)
    assert sample["key"] == "chats-00000016"
    assert [s["kind"] for s in sample["segments"]].count("image") == 2
    assert sample["origin"] == {"source": "chats", "path": "chats.json", "row": 16}
    assert sample["media"]["0.jpg"]["width"] == 360
    with pytest.raises(NotFound):
        describe_sample(context.folder("chats"), 18)


def test_samples_of_others_are_shown_as_they_lie(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "theirs.tar", "w") as tar:
        for name, content in (("a.jpg", image("JPEG")), ("a.txt", b"a cat"), ("a.cls", b"3")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    invoke("index", tmp_path / "theirs.tar", tmp_path / "index", "--workers", 0)
    folder = Context(tmp_path).folder("index")
    (card,) = cards_of(folder, 0)
    assert card["kinds"] == {"jpg": "image"} and card["text"].startswith("a cat")
    shown = describe_sample(folder, 0)
    assert [s["kind"] for s in shown["segments"]] == ["image", "text", "text"]


def test_a_broken_shard_spoils_only_its_own_samples(pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline / "pairs", tmp_path / "pairs")
    (tmp_path / "pairs" / "shards" / "000001.idx").write_bytes(b"garbage")
    (tmp_path / "pairs" / "shards" / "000002.tar").write_bytes(b"short")
    folder = Context(tmp_path).folder("pairs")
    page = filter_samples(folder, 0, 100, source="", wanted="", budget=Budget(60))
    problems = [card["number"] for card in page["cards"] if "problem" in card]
    assert problems == list(range(7, 22)) and len(page["cards"]) == 32
    page = filter_samples(folder, 0, 100, source="pairs", wanted="", budget=Budget(60))
    assert [card["number"] for card in page["cards"]] == [*range(7), *range(15, 32)]


def test_cards_show_text_and_media(context: Context) -> None:
    (card,) = cards_of(context.folder("chats"), 17)
    assert card["kinds"] == {"mp4": "video"}
    assert card["text"].startswith("\nWhat does the film show?")


def test_hostile_samples_stay_text(hostile: Path) -> None:
    context = Context(hostile)
    (item,) = context.items().values()
    sample = describe_sample(context.folder(item.id), 0)
    assert "<script>" in sample["segments"][1]["text"]
    assert sample["key"].startswith("<img")


def find(context: Context, wanted: str) -> list[dict[str, Any]]:
    """Return all hits, asking on as the page does."""
    hits, cursor = list[dict[str, Any]](), {"item": "0", "shard": "0"}
    for _ in range(1000):
        found = search(context, Query({"q": wanted, **cursor}))
        hits += found["hits"]
        if found["cursor"] is None:
            return hits
        cursor = dict(zip(("item", "shard"), map(str, found["cursor"])))
    raise AssertionError("the search does not end")


@pytest.mark.parametrize("seconds", [60.0, 1e-9])
def test_a_key_is_found_in_samples_and_tokens(
    context: Context, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(Budget.__init__, "__defaults__", (seconds,))
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


@pytest.fixture
def rejected(pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The pairs with many rejects in several files, shown seven at a time."""
    shutil.copytree(pipeline / "pairs", tmp_path / "pairs")
    for unit in range(5):
        lines = [
            {"key": f"k{unit}-{n}", "reason": f"r{n % 3}", "detail": "<d>", "filtered": False}
            for n in range(10)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "pairs" / "rejects" / f"{unit:06d}.jsonl").write_text(text)
    monkeypatch.setattr("shardmill.view.samples.MAX_REJECTS", 7)
    return Folder(tmp_path / "pairs", AccessPolicy.below(tmp_path))


@pytest.mark.parametrize(
    ("reason", "wanted", "count"), [("", "", 50), ("r1", "", 15), ("", "K3-", 10)]
)
def test_pages_of_rejects_hold_each_that_fits_once(
    rejected: Folder, reason: str, wanted: str, count: int
) -> None:
    found, cursor = list[str](), (0, 0)
    while cursor is not None:
        page = find_rejects(rejected, reason, wanted, cursor, Budget(60))
        found += [reject["key"] for reject in page["found"]]
        cursor = page["cursor"] and tuple(page["cursor"])
    assert len(found) == len(set(found)) == count


def test_a_list_of_rejects_without_time_goes_on_later(rejected: Folder) -> None:
    page = find_rejects(rejected, "", "", (0, 0), Budget(0))
    assert page["found"] == [] and page["cursor"] == [0, 0]
