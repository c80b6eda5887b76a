from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.errors import ConfigError, NotFound
from shardmill.storage.text import dump_line
from shardmill.view.answers import ANSWERS, Budget, Query, answer
from shardmill.view.context import Context

ASKED = {
    "map": {},
    "item": {"id": "tokens"},
    "units": {"id": "pairs", "at": "2", "count": "2"},
    "unit": {"id": "pairs", "name": "000001"},
    "rejects": {"id": "pairs", "reason": "missing file"},
    "samples": {"id": "chats"},
    "sample": {"id": "chats", "n": "16"},
    "rows": {"id": "tokens"},
    "row": {"id": "tokens", "n": "16"},
    "packs": {"id": "packs"},
    "pack": {"id": "packs", "n": "1"},
    "plots": {"id": "packs.plan", "world": "2"},
    "search": {"q": "chats-00000002"},
}


@pytest.mark.parametrize("name", ASKED)
def test_every_answer_is_plain_json(context: Context, name: str) -> None:
    assert dump_line(answer(context, name, ASKED[name]))


def test_all_answers_are_tried() -> None:
    assert set(ANSWERS) == {*ASKED, "codes"}


def test_a_sample_names_what_was_made_of_it(context: Context) -> None:
    uses = answer(context, "sample", {"id": "chats", "n": "17"})["uses"]
    assert uses == [{"kind": "row", "id": "tokens", "number": 17}]
    uses = answer(context, "sample", {"id": "pairs", "n": "31"})["uses"]
    assert [use["id"] for use in uses] == ["sharp"]


def test_a_sample_names_its_source_file_wholly(context: Context, pipeline: Path) -> None:
    for id in ("pairs", "sharp"):
        origin = answer(context, "sample", {"id": id, "n": "0"})["origin"]
        assert origin["file"] == str(pipeline / "data" / "pairs.jsonl")


def test_a_row_names_its_sample(context: Context) -> None:
    assert answer(context, "row", {"id": "tokens", "n": "17"})["sample_at"]["number"] == 17


def test_an_unknown_answer_is_not_here(context: Context) -> None:
    with pytest.raises(NotFound):
        answer(context, "__init__", {})


def test_numbers_and_texts_are_taken_with_their_defaults() -> None:
    query = Query({"n": "12", "id": "a/b"})
    assert query.number("n") == 12
    assert query.number("at", 3) == 3
    assert query.number("n", most=5) == 5
    assert query.text("id") == "a/b"
    assert query.text("q", "") == ""


@pytest.mark.parametrize("value", ["", "-1", "1.5", "0x10", "१२", "9" * 17, "1e3", "nan"])
def test_what_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(ConfigError):
        Query({"n": value}).number("n")


def test_what_is_missing_or_endless_is_refused() -> None:
    with pytest.raises(ConfigError):
        Query({}).text("id")
    with pytest.raises(ConfigError):
        Query({"id": "x" * 3000}).text("id")


def test_a_budget_ends() -> None:
    assert Budget(0.0).is_spent
    assert not Budget(3600.0).is_spent
