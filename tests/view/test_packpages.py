from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.view.context import Desk
from shardmill.view.library import Library
from shardmill.view.packpages import list_packs, sample_place, show_pack
from shardmill.view.query import Query
from shardmill.view.samples import show_sample


@pytest.mark.parametrize("id", ["packs", "packs.plan"])
def test_each_document_leads_to_its_row_sample_and_source(desk: Desk, id: str) -> None:
    for number in range(3):
        pack = show_pack(desk, Query({"id": id, "n": str(number)}))
        for document in pack["documents"]:
            rows = desk.library.folder(document["tokens_at"]["id"]).tokens()
            assert rows[document["tokens_at"]["number"]].key == document["key"]
            at = document["sample_at"]
            sample = show_sample(desk.library.folder(at["id"]), at["number"])
            assert sample["key"] == document["key"]
            assert sample["origin"] == document["origin"]
            assert [m["name"] for m in document["media"]] == list(sample["media"])


def test_packs_are_listed_page_by_page(desk: Desk) -> None:
    found = list_packs(desk, Query({"id": "packs", "at": "1", "count": "1"}))
    assert found["total"] == 3
    assert [pack["number"] for pack in found["packs"]] == [1]
    assert list_packs(desk, Query({"id": "packs", "at": "99"}))["packs"] == []


def test_a_row_that_was_split_off_leads_to_its_sample(desk: Desk) -> None:
    samples = desk.library.samples_of("packs")
    assert samples is not None
    assert sample_place(samples, "chats-00000002~3", None) == {"id": "chats", "number": 2}


def test_packs_alone_are_shown_without_ways(pipeline: Path) -> None:
    pack = show_pack(Desk(Library(pipeline / "packs")), Query({"id": ".", "n": "0"}))
    assert pack["capacity"] is None and pack["padding"] == 0
    assert {d["sample_at"] for d in pack["documents"]} == {None}
    rows = Library(pipeline / "packs").folder(".").tokens()
    for document in pack["documents"]:
        assert rows[document["tokens_at"]["number"]].key == document["key"]
