from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from packed_folder import make_packed
from view_folders import run_in

from shardmill.pack.order import EpochOrder
from shardmill.view.context import Desk
from shardmill.view.items import NotHere
from shardmill.view.library import Library
from shardmill.view.packs import PlannedPacks, StoredPacks, TarPacks, check_number, spread


def test_stored_packs_are_the_planned_ones_in_the_order_of_training(desk: Desk) -> None:
    planned, stored = desk.packs("packs.plan"), desk.packs("packs")
    assert isinstance(planned, PlannedPacks) and isinstance(stored, StoredPacks)
    assert len(planned) == len(stored) == 3
    order = EpochOrder(planned.plan, seed=0, epoch=0).packs(np.arange(3)).tolist()
    for place, number in enumerate(order):
        want, have = planned.rows(number), stored.rows(place)
        assert [row.row.key for row in have if row.row] == [row.row.key for row in want if row.row]
        assert [row.number for row in have] == [row.number for row in want]


def test_rows_of_stored_packs_are_known_by_the_order_they_were_written_in(tmp_path: Path) -> None:
    made = make_packed(tmp_path)
    run_in(
        tmp_path,
        "plan tokens own.plan --capacity 128 --block 16",
        "pack tokens own.plan packs --seed 3 --epoch 2 --workers 0",
    )
    packs = Desk(Library(tmp_path)).packs("packs")
    assert len(packs) > 50
    for number in range(len(packs)):
        for row in packs.rows(number):
            assert row.row is not None and row.number is not None
            assert made.rows[row.number].key == row.row.key


def test_where_documents_lie_adds_up(desk: Desk) -> None:
    packs = desk.packs("packs")
    for number in range(len(packs)):
        found = spread(packs, packs.rows(number))
        ends = [s + p for s, p in zip(found["starts"], found["padded"])]
        assert found["starts"] == [0, *ends[:-1]]
        assert found["tokens"] + found["padding"] == found["size"] == 2048
        assert all(v <= n for v, n in zip(found["visual"], found["lengths"]))


def test_packs_in_tars_hold_the_same_documents(pipeline: Path, tmp_path: Path) -> None:
    for name in ("chats", "tokens", "packs.plan"):
        (tmp_path / name).symlink_to(pipeline / name)
    words = "pack tokens packs.plan tarred --format tar --samples chats --workers 0"
    run_in(tmp_path, words)
    desk = Desk(Library(tmp_path, (str(pipeline),)))
    tarred, stored = desk.packs("tarred"), Desk(Library(pipeline)).packs("packs")
    assert isinstance(tarred, TarPacks)
    for number in range(3):
        ours = [row.row for row in tarred.rows(number)]
        theirs = [row.row for row in stored.rows(number)]
        for a, b in zip(ours, theirs, strict=True):
            assert a is not None and b is not None
            assert a.key == b.key
            assert a.ids.tolist() == b.ids.tolist()
            assert a.loss.tolist() == b.loss.tolist()
            assert [s.position for s in a.media] == [s.position for s in b.media]


def test_a_plan_without_its_data_still_names_rows(pipeline: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.plan").write_bytes((pipeline / "packs.plan").read_bytes())
    packs = Desk(Library(tmp_path)).packs("alone.plan")
    rows = packs.rows(0)
    assert [row.row for row in rows] == [None] * len(rows)
    assert all(row.number is not None for row in rows)


def test_packs_that_are_not_there_are_not_shown(desk: Desk) -> None:
    with pytest.raises(NotHere):
        check_number(desk.packs("packs"), 3)
