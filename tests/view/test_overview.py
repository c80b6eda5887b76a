from __future__ import annotations

import json
import shutil
from pathlib import Path

from view_folders import HOSTILE_NAME

from shardmill.view.answers import Query
from shardmill.view.context import Context
from shardmill.view.overview import (
    progress_of,
    show_item,
    show_map,
    show_unit,
    stat_plots,
    unit_row,
)


def test_the_map_holds_every_item_and_way(context: Context) -> None:
    found = show_map(context, Query({}))
    assert [node["id"] for node in found["nodes"]] == sorted(context.items())
    assert ["tokens", "packs.plan"] in found["edges"]
    assert {node["state"] for node in found["nodes"]} == {"done"}
    raw = {one["name"]: one["feeds"] for one in found["raw"]}
    assert raw == {"pairs.jsonl": ["pairs"], "chats.json": ["chats"]}


def test_the_counts_of_a_folder_balance(context: Context) -> None:
    page = show_item(context, Query({"id": "pairs"}))
    assert page["in"] == page["kept"] + sum(page["skipped_by"].values()) == 34
    assert page["examples"]["missing file"][0]["key"] == "pairs-00000007"
    assert page["feeds"] == ["sharp"]


def test_the_page_of_a_plan_names_its_data(context: Context) -> None:
    page = show_item(context, Query({"id": "packs.plan"}))
    assert (page["packs"], page["packed"], page["data"]) == (3, 18, "tokens")


def test_a_broken_folder_does_not_spoil_the_map(pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline / "pairs", tmp_path / "good")
    shutil.copytree(pipeline / "pairs", tmp_path / "broken")
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "stage.json").write_text('{"stage": 3}')
    shutil.copytree(pipeline / "pairs", tmp_path / "leaky")
    (tmp_path / "leaky" / "shards" / "x.tar").symlink_to("/etc/passwd")
    context = Context(tmp_path)
    states = {node["id"]: node["state"] for node in show_map(context, Query({}))["nodes"]}
    assert states == {"good": "done", "broken": "broken", "worse": "broken", "leaky": "refused"}
    assert show_item(context, Query({"id": "good"}))["kept"] == 32


def test_a_folder_without_a_stage_is_shown_by_its_manifest(hostile: Path) -> None:
    (node,) = show_map(Context(hostile), Query({}))["nodes"]
    assert (node["id"], node["kept"], node["state"]) == (HOSTILE_NAME, 3, "done")


def test_the_counts_of_a_unit_are_those_of_its_receipt(context: Context) -> None:
    unit = show_unit(context, Query({"id": "pairs", "name": "000002"}))
    assert (unit["in"], unit["kept"], unit["skipped"]) == (8, 7, 1)
    assert unit["rejects"][0]["reason"] == "not an image"
    assert {file["role"] for file in unit["files"][0]["files"]} == {"tar", "idx"}
    assert unit["files"][0]["first"] == 15


def test_units_have_states(pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline / "pairs", tmp_path / "pairs")
    (tmp_path / "pairs" / "manifest.json").unlink()
    for name in ("000002", "000003", "000004"):
        (tmp_path / "pairs" / "receipts" / f"{name}.json").unlink()
    failure = {"message": "no room", "traceback": "...", "unit": "000002"}
    (tmp_path / "pairs" / "failures" / "000002.json").write_text(json.dumps(failure))
    context = Context(tmp_path)
    folder = context.folder("pairs")
    rows = [unit_row(folder, unit, {"000003"}) for unit in folder.units()]
    assert [row["state"] for row in rows] == ["done", "done", "failed", "running", "waiting"]
    failed = show_unit(context, Query({"id": "pairs", "name": "000002"}))
    assert failed["failure"]["message"] == "no room"
    status = context.status(folder)
    assert status is not None
    assert (progress_of(status)["state"], progress_of(status)["done"]) == ("failed", 2)


def test_a_status_is_not_read_again_at_once(context: Context) -> None:
    folder = context.folder("pairs")
    assert context.status(folder) is context.status(folder)


def test_statistics_become_facts_tables_and_bars() -> None:
    stats = {"tokens": 5, "source|a": 2, "source|b": 3, "chars|<=4": 1, "chars|<=16": 2}
    found = {group["name"]: group for group in stat_plots({**stats, "chars|sum": 30})}
    assert found[""]["rows"] == [("tokens", 5)]
    assert found["source"]["rows"] == [("b", 3), ("a", 2)]
    assert (found["chars"]["limits"], found["chars"]["counts"]) == ([4, 8, 16], [1, 0, 2])
    assert found["chars"]["mean"] == 10
