from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import lists, text
from invoked import invoke
from make_media import image

from shardmill.shards.tar.index import IndexRows, index_of
from shardmill.view.context import Context
from shardmill.view.folder import Folder
from shardmill.view.items import NotHere
from shardmill.view.query import Budget
from shardmill.view.samples import filter_samples, find_sample, matching, show_sample

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
    index = index_of(
        rows.arrays(Path("x"), end=len(keys) * 1024, num_bytes=len(keys) * 1024, url="x")
    )
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
    sample = show_sample(context.folder("chats"), 16)
    assert sample["key"] == "chats-00000016"
    assert [s["kind"] for s in sample["segments"]].count("image") == 2
    assert sample["origin"] == {"source": "chats", "path": "chats.json", "row": 16}
    assert sample["media"]["0.jpg"]["width"] == 360
    with pytest.raises(NotHere):
        show_sample(context.folder("chats"), 18)


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
    shown = show_sample(folder, 0)
    assert [s["kind"] for s in shown["segments"]] == ["image", "text", "text"]


def test_nothing_is_found_in_a_folder_that_has_just_begun(pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline / "pairs", tmp_path / "pairs")
    for path in [tmp_path / "pairs" / "manifest.json", *tmp_path.glob("pairs/receipts/*")]:
        path.unlink()
    folder = Context(tmp_path).folder("pairs")
    assert find_sample(folder, "pairs-00000033", "000004") is None


def test_a_sample_is_found_by_key_wherever_it_is(context: Context) -> None:
    folder = context.folder("pairs")
    assert find_sample(folder, "pairs-00000033", "000004") == 31
    assert find_sample(folder, "pairs-00000033", "no such shard") == 31
    assert find_sample(folder, "pairs-00000007") is None  # it was rejected


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
    assert card["text"].startswith("What does the film show?")


def test_hostile_samples_stay_text(hostile: Path) -> None:
    context = Context(hostile)
    (item,) = context.items().values()
    sample = show_sample(context.folder(item.id), 0)
    assert "<script>" in sample["segments"][1]["text"]
    assert sample["key"].startswith("<img")
