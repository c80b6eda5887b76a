from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.storage.text import dump_line
from shardmill.view.answers import ANSWERS, answer
from shardmill.view.context import Context
from shardmill.view.items import NotHere

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
    with pytest.raises(NotHere):
        answer(context, "__init__", {})
