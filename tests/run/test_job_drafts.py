"""Draft folders are private, empty when handed out, and used again."""

from __future__ import annotations

from pathlib import Path

from shardmill.run.job import DraftRoom


def test_folders_are_empty_and_not_shared(tmp_path: Path) -> None:
    room = DraftRoom(tmp_path)
    first, second = room.take(), room.take()
    assert first != second and list(first.iterdir()) == list(second.iterdir()) == []


def test_an_empty_folder_is_used_again(tmp_path: Path) -> None:
    room = DraftRoom(tmp_path)
    first = room.take()
    room.give_back(first)
    assert room.take() == first


def test_what_was_left_in_a_folder_is_not_handed_on(tmp_path: Path) -> None:
    room = DraftRoom(tmp_path)
    first = room.take()
    (first / "folder").mkdir()
    (first / "folder" / "left").touch()
    room.give_back(first)
    assert list(room.take().iterdir()) == [] and not (first / "folder").exists()


def test_a_folder_that_is_gone_is_not_handed_out(tmp_path: Path) -> None:
    room = DraftRoom(tmp_path)
    first = room.take()
    first.rmdir()
    room.give_back(first)
    assert room.take().is_dir()
