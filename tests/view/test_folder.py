from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from invoked import invoke

from shardmill.view.access import AccessPolicy, Refused
from shardmill.view.folder import Folder
from shardmill.view.items import NotHere


def open_folder(path: Path) -> Folder:
    return Folder(path, AccessPolicy.below(path.parent))


@pytest.fixture
def unfinished(pipeline: Path, tmp_path: Path) -> Path:
    """The pairs as they were before their last two units were done."""
    folder = tmp_path / "pairs"
    shutil.copytree(pipeline / "pairs", folder)
    (folder / "manifest.json").unlink()
    for name in ("000003", "000004"):
        (folder / "receipts" / f"{name}.json").unlink()
    return folder


def test_a_folder_says_what_it_holds(pipeline: Path, tmp_path: Path) -> None:
    found = {name: open_folder(pipeline / name).content for name in ("chats", "tokens", "packs")}
    assert found == {"chats": "samples", "tokens": "tokens", "packs": "packs"}
    flags = ("--format", "megatron", "--workers", 0)
    invoke("export", pipeline / "tokens", tmp_path / "megatron", *flags)
    assert open_folder(tmp_path / "megatron").content == "export"


def test_a_folder_names_the_command_that_makes_it(pipeline: Path) -> None:
    found = [open_folder(pipeline / name).verb for name in ("chats", "sharp", "tokens", "packs")]
    assert found == ["ingest", "filter", "tokenize", "pack"]


def test_an_unfinished_folder_shows_what_receipts_vouch_for(unfinished: Path) -> None:
    folder = open_folder(unfinished)
    assert folder.manifest is None
    assert [entry.name for entry in folder.entries()] == ["000000", "000001", "000002"]
    assert len(folder.samples()) == 22


def test_a_receipt_that_comes_later_is_seen(unfinished: Path, pipeline: Path) -> None:
    folder = open_folder(unfinished)
    before = len(folder.samples())
    shutil.copy(pipeline / "pairs/receipts/000003.json", unfinished / "receipts")
    assert len(folder.samples()) == before + 8


def test_a_broken_receipt_counts_as_none(unfinished: Path) -> None:
    (unfinished / "receipts" / "000001.json").write_text("{not json")
    folder = open_folder(unfinished)
    assert [entry.name for entry in folder.entries()] == ["000000", "000002"]


def test_a_receipt_of_another_stage_counts_as_none(unfinished: Path) -> None:
    path = unfinished / "receipts" / "000001.json"
    receipt = json.loads(path.read_bytes())
    path.write_text(json.dumps({**receipt, "digest": "0" * 32}))
    folder = open_folder(unfinished)
    assert [entry.name for entry in folder.entries()] == ["000000", "000002"]


def test_units_are_known_by_name_only(pipeline: Path) -> None:
    folder = open_folder(pipeline / "pairs")
    assert folder.unit("000001").name == "000001"
    with pytest.raises(NotHere):
        folder.unit("../000001")


def test_a_folder_with_a_link_out_is_not_opened(unfinished: Path) -> None:
    folder = open_folder(unfinished)
    folder.check()
    (unfinished / "rejects" / "000003.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(Refused):
        folder.check()
