"""Overlapping parts become one data set: none lost, none doubled, whatever was left behind."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, integers, lists, tuples
from unidisc_folder import write_interleaved

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.adapters.unidisc.parts import choose_rows, find_parts

ids_of_a_part = lists(integers(0, 12), max_size=6, unique=True)


@settings(max_examples=25)
@given(parts=lists(tuples(ids_of_a_part, booleans(), integers(0, 2)), min_size=1, max_size=4))
def test_every_id_is_taken_exactly_once(parts: list[tuple[list[int], bool, int]]) -> None:
    with TemporaryDirectory() as name:
        for number, (ids, is_temporary, unwritten) in enumerate(parts):
            part = f"{'tmp_' * is_temporary}train_{number}"
            write_interleaved(Path(name) / part, ids, unwritten=unwritten + (not ids))
        found = list(choose_rows(find_parts(Path(name), "train", skip_broken=False), None))
        taken = [int(id_) for part in found for id_ in part.ids]
        assert sorted(taken) == sorted({id_ for ids, _, _ in parts for id_ in ids})
        num_rows = sum(len(ids) + unwritten + (not ids) for ids, _, unwritten in parts)
        left = sum(part.num_unwritten + part.num_repeated for part in found)
        assert num_rows == len(taken) + left


def test_finished_parts_come_before_temporary_ones_and_ten_after_two(tmp_path: Path) -> None:
    for name in ("train_10", "train_2", "tmp_train_1", "val_0", "train_existing_17"):
        write_interleaved(tmp_path / name, [0])
    parts = [part.name for part in find_parts(tmp_path, "train", skip_broken=False)]
    assert parts == ["train_existing_17", "train_2", "train_10", "tmp_train_1"]


def test_equal_ids_with_other_tokens_need_a_decision(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "train_0", [0, 1])
    write_interleaved(tmp_path / "train_1", [4, 5])
    # The second part counts from 0 again: its samples are others.
    (tmp_path / "train_1" / "idx.memmap").write_bytes(
        (tmp_path / "train_0" / "idx.memmap").read_bytes()
    )
    parts = find_parts(tmp_path, "train", skip_broken=False)
    with pytest.raises(ConfigError, match=r"id 0 has other tokens in train_1 .*,ids=local"):
        list(choose_rows(parts, None))
    assert [len(part.rows) for part in choose_rows(parts, "local")] == [2, 2]
    assert [len(part.rows) for part in choose_rows(parts, "global")] == [2, 0]


def test_half_written_parts_stop_the_merge_unless_they_are_skipped(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "train_0", [0, 1])
    broken = write_interleaved(tmp_path / "tmp_train_1", [2, 3])
    (broken / "input_ids.memmap").write_bytes(b"")
    with pytest.raises(FormatError, match=r"tmp_train_1/input_ids.memmap: has 0 .*skip_broken"):
        find_parts(tmp_path, "train", skip_broken=False)
    parts = find_parts(tmp_path, "train", skip_broken=True)
    assert [part.name for part in parts] == ["train_0"]


def test_a_broken_finished_part_is_never_skipped(tmp_path: Path) -> None:
    (write_interleaved(tmp_path / "train_0", [0]) / "idx.memmap").unlink()
    with pytest.raises(FormatError, match="idx"):
        find_parts(tmp_path, "train", skip_broken=True)


def test_a_folder_without_parts_says_what_is_missing(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "val_0", [0])
    with pytest.raises(ConfigError, match="no parts of split 'train'"):
        find_parts(tmp_path, "train", skip_broken=False)
