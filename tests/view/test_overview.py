from __future__ import annotations

import shutil
from pathlib import Path

from view_folders import HOSTILE_NAME

from shardmill.view.context import Desk
from shardmill.view.library import Library
from shardmill.view.overview import show_item, show_map
from shardmill.view.query import Query


def test_the_map_holds_every_item_and_way(desk: Desk) -> None:
    found = show_map(desk, Query({}))
    assert [node["id"] for node in found["nodes"]] == sorted(desk.library.items())
    assert ["tokens", "packs.plan"] in found["edges"]
    assert {node["state"] for node in found["nodes"]} == {"done"}
    raw = {one["name"]: one["feeds"] for one in found["raw"]}
    assert raw == {"pairs.jsonl": ["pairs"], "chats.json": ["chats"]}


def test_books_of_a_folder_balance(desk: Desk) -> None:
    page = show_item(desk, Query({"id": "pairs"}))
    assert page["in"] == page["kept"] + sum(page["skipped_by"].values()) == 34
    assert page["examples"]["missing file"][0]["key"] == "pairs-00000007"
    assert page["feeds"] == ["sharp"]


def test_the_page_of_a_plan_names_its_data(desk: Desk) -> None:
    page = show_item(desk, Query({"id": "packs.plan"}))
    assert (page["packs"], page["packed"], page["data"]) == (3, 18, "tokens")


def test_a_broken_folder_does_not_spoil_the_map(pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline / "pairs", tmp_path / "good")
    shutil.copytree(pipeline / "pairs", tmp_path / "broken")
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "stage.json").write_text('{"stage": 3}')
    shutil.copytree(pipeline / "pairs", tmp_path / "leaky")
    (tmp_path / "leaky" / "shards" / "x.tar").symlink_to("/etc/passwd")
    desk = Desk(Library(tmp_path))
    states = {node["id"]: node["state"] for node in show_map(desk, Query({}))["nodes"]}
    assert states == {"good": "done", "broken": "broken", "worse": "broken", "leaky": "refused"}
    assert show_item(desk, Query({"id": "good"}))["kept"] == 32


def test_a_folder_without_a_stage_is_shown_by_its_manifest(hostile: Path) -> None:
    (node,) = show_map(Desk(Library(hostile)), Query({}))["nodes"]
    assert (node["id"], node["kept"], node["state"]) == (HOSTILE_NAME, 3, "done")
