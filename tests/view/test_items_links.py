from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.view.items import Item, find_item, inputs_of, raw_inputs


def shelf_of(*names: str) -> dict[str, Item]:
    return {name: Item(name, Path("/work/runs") / name, "stage") for name in names}


@pytest.mark.parametrize(
    "typed", ["chats", "runs/chats", "./chats", "../runs/chats", "/work/runs/chats"]
)
def test_a_path_is_found_from_wherever_the_command_was_typed(typed: str) -> None:
    found = find_item(typed, Path("/work/runs/tokens"), shelf_of("chats", "tokens"))
    assert found is not None and found.id == "chats"


def test_a_path_that_leads_elsewhere_is_no_item() -> None:
    items = shelf_of("chats", "tokens")
    assert find_item("/etc/passwd", Path("/work/runs/tokens"), items) is None
    assert find_item("../../..", Path("/work/runs/tokens"), items) is None


def test_inputs_are_named_once_and_never_the_folder_itself() -> None:
    items = shelf_of("chats", "codes", "tokens")
    spec = {"input_dir": "chats", "samples_dir": "chats", "codes": {"dir": "codes"}, "x": "tokens"}
    found = inputs_of(spec, Path("/work/runs/tokens"), items)
    assert [item.id for item in found] == ["chats", "codes"]


def test_raw_files_are_those_of_the_source() -> None:
    assert raw_inputs({"source": {"files": ["a.jsonl", "b.jsonl"]}}) == ["a.jsonl", "b.jsonl"]
    assert raw_inputs({"tars": ["x.tar"]}) == ["x.tar"]
    assert raw_inputs({"source": {"files": 3, "dir": None}}) == []
