from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.view import items as items_module
from shardmill.view.access import AccessPolicy
from shardmill.view.context import Context
from shardmill.view.items import Item, ItemList, NotHere, find_item, inputs_of


def make(root: Path) -> ItemList:
    return ItemList(root, AccessPolicy.below(root))


def test_stages_and_plans_are_found_and_raw_data_is_not(pipeline: Path) -> None:
    items = make(pipeline).items()
    kinds = {name: item.kind for name, item in items.items()}
    assert kinds == {
        **dict.fromkeys(("chats", "packs", "pairs", "sharp", "tokens"), "stage"),
        "packs.plan": "plan",
    }


def test_a_stage_folder_by_itself_is_the_only_item(pipeline: Path) -> None:
    items = make(pipeline / "tokens").items()
    assert list(items) == ["."]
    assert items["."].name == "tokens"


@pytest.mark.parametrize("id", ["", "..", "../pipeline", "/etc", "chats/shards", "chats/../chats"])
def test_only_ids_of_items_are_known(pipeline: Path, id: str) -> None:
    with pytest.raises(NotHere):
        Context(pipeline).item(id)


def test_a_linked_folder_outside_is_no_item(pipeline: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pipeline / "tokens")
    assert make(tmp_path).items() == {}
    allowed = ItemList(tmp_path, AccessPolicy.below(tmp_path, (str(pipeline),)))
    assert list(allowed.items()) == ["link"]


def test_a_stage_that_begins_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items_module, "RESCAN_S", -1.0)
    found = make(tmp_path)
    assert found.items() == {}
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "stage.json").write_text("{}")
    assert list(found.items()) == ["late"]


def test_a_file_that_only_looks_like_a_plan_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "broken.plan").write_bytes(b"SHMLARR1" + b"\xff" * 64)
    assert make(tmp_path).items() == {}


def items_of(*names: str) -> dict[str, Item]:
    return {name: Item(name, Path("/work/runs") / name, "stage") for name in names}


@pytest.mark.parametrize(
    "typed", ["chats", "runs/chats", "./chats", "../runs/chats", "/work/runs/chats"]
)
def test_a_path_is_found_from_wherever_the_command_was_typed(typed: str) -> None:
    found = find_item(typed, Path("/work/runs/tokens"), items_of("chats", "tokens"))
    assert found is not None and found.id == "chats"


def test_a_pipeline_that_was_moved_keeps_its_links() -> None:
    found = find_item("/old/place/chats", Path("/work/runs/tokens"), items_of("chats", "tokens"))
    assert found is not None and found.id == "chats"


def test_a_path_that_leads_elsewhere_is_no_item() -> None:
    items = items_of("chats", "tokens")
    assert find_item("/etc/passwd", Path("/work/runs/tokens"), items) is None
    assert find_item("../../..", Path("/work/runs/tokens"), items) is None


def test_inputs_are_named_once_and_never_the_folder_itself() -> None:
    items = items_of("chats", "codes", "tokens")
    reads = {"samples": ["chats"], "input": ["chats"], "codes": ["codes"], "raw": ["tokens", "x"]}
    found = inputs_of(reads, Path("/work/runs/tokens"), items)
    assert [item.id for item in found] == ["chats", "codes"]
