from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.view import items as shelf_module
from shardmill.view.access import Fence
from shardmill.view.items import NotHere, Shelf


def make(root: Path) -> Shelf:
    return Shelf(root, Fence.around(root))


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
        make(pipeline).get(id)


def test_a_linked_folder_outside_is_no_item(pipeline: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pipeline / "tokens")
    assert make(tmp_path).items() == {}
    allowed = Shelf(tmp_path, Fence.around(tmp_path, (str(pipeline),)))
    assert list(allowed.items()) == ["link"]


def test_a_stage_that_begins_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf_module, "RESCAN_S", -1.0)
    shelf = make(tmp_path)
    assert shelf.items() == {}
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "stage.json").write_text("{}")
    assert list(shelf.items()) == ["late"]


def test_a_file_that_only_looks_like_a_plan_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "broken.plan").write_bytes(b"SHMLARR1" + b"\xff" * 64)
    assert make(tmp_path).items() == {}
