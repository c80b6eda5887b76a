from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from packed_folder import make_packed
from view_folders import run_in

from shardmill.errors import NotFound
from shardmill.packing.order import EpochOrder
from shardmill.view.answers import Budget, Query
from shardmill.view.context import Context, sample_place
from shardmill.view.samples import describe_sample
from shardmill.view.tokens import (
    PacksOfPlan,
    RecordPacks,
    StoredPacks,
    TarPacks,
    filter_rows,
    layout_of,
    list_packs,
    open_packs,
    show_pack,
    show_row,
)


def test_stored_packs_are_the_planned_ones_in_the_order_of_training(context: Context) -> None:
    planned, stored = open_packs(context, "packs.plan"), open_packs(context, "packs")
    assert isinstance(planned, PacksOfPlan) and isinstance(stored, StoredPacks)
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
    packs = open_packs(Context(tmp_path), "packs")
    assert len(packs) > 50
    for number in range(len(packs)):
        for row in packs.rows(number):
            assert row.row is not None and row.number is not None
            assert made.rows[row.number].key == row.row.key


def test_where_documents_lie_adds_up(context: Context) -> None:
    packs = open_packs(context, "packs")
    for number in range(len(packs)):
        found = layout_of(packs, packs.rows(number))
        ends = [s + p for s, p in zip(found["starts"], found["padded"])]
        assert found["starts"] == [0, *ends[:-1]]
        assert found["tokens"] + found["padding"] == found["size"] == 2048
        assert all(v <= n for v, n in zip(found["visual"], found["lengths"]))


def test_packs_in_tars_hold_the_same_documents(pipeline: Path, tmp_path: Path) -> None:
    for name in ("chats", "tokens", "packs.plan"):
        (tmp_path / name).symlink_to(pipeline / name)
    words = "pack tokens packs.plan tarred --format tar --samples chats --workers 0"
    run_in(tmp_path, words)
    context = Context(tmp_path, (str(pipeline),))
    tarred, stored = open_packs(context, "tarred"), open_packs(Context(pipeline), "packs")
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
    packs = open_packs(Context(tmp_path), "alone.plan")
    rows = packs.rows(0)
    assert [row.row for row in rows] == [None] * len(rows)
    assert all(row.number is not None for row in rows)


def test_packs_that_are_not_there_are_not_shown(context: Context) -> None:
    with pytest.raises(NotFound):
        show_pack(context, Query({"id": "packs", "n": "3"}))


@pytest.mark.parametrize("id", ["packs", "packs.plan"])
def test_each_document_leads_to_its_row_sample_and_source(context: Context, id: str) -> None:
    for number in range(3):
        pack = show_pack(context, Query({"id": id, "n": str(number)}))
        for document in pack["documents"]:
            rows = context.folder(document["tokens_at"]["id"]).tokens()
            assert rows[document["tokens_at"]["number"]].key == document["key"]
            at = document["sample_at"]
            sample = describe_sample(context.folder(at["id"]), at["number"])
            assert sample["key"] == document["key"]
            assert sample["origin"] == document["origin"]
            assert [m["name"] for m in document["media"]] == list(sample["media"])


def test_packs_are_listed_page_by_page(context: Context) -> None:
    found = list_packs(context, Query({"id": "packs", "at": "1", "count": "1"}))
    assert found["total"] == 3
    assert [pack["number"] for pack in found["packs"]] == [1]
    assert list_packs(context, Query({"id": "packs", "at": "99"}))["packs"] == []


def test_a_row_that_was_split_off_leads_to_its_sample(context: Context) -> None:
    samples = context.upstream("packs", "samples")
    assert samples is not None
    assert sample_place(samples, "chats-00000002~+3", None) == {"id": "chats", "number": 2}


def test_packs_alone_are_shown_without_ways(pipeline: Path) -> None:
    pack = show_pack(Context(pipeline / "packs"), Query({"id": ".", "n": "0"}))
    assert pack["capacity"] is None and pack["padding"] == 0
    assert {d["sample_at"] for d in pack["documents"]} == {None}
    rows = Context(pipeline / "packs").folder(".").tokens()
    for document in pack["documents"]:
        assert rows[document["tokens_at"]["number"]].key == document["key"]


@pytest.mark.parametrize("format", ["megatron", "webdataset"])
def test_records_of_an_export_are_shown_through_its_reader(
    pipeline: Path, tmp_path: Path, format: str
) -> None:
    for name in ("chats", "tokens"):
        (tmp_path / name).symlink_to(pipeline / name)
    drop = " --drop loss,modality,spans" if format == "megatron" else ""
    run_in(tmp_path, f"export tokens out --format {format} --workers 0{drop}")
    context = Context(tmp_path, (str(pipeline),))
    records, rows = open_packs(context, "out"), context.folder("tokens").tokens()
    assert isinstance(records, RecordPacks) and len(records) == len(rows)
    for number in (3, 4, 2, 17):
        (record,) = records.rows(number)
        assert record.row is not None
        assert record.row.ids.tolist() == rows[number].ids.tolist()
    (document,) = show_pack(context, Query({"id": "out", "n": "2"}))["documents"]
    assert sum(run["tokens"] for run in document["runs"]) == len(rows[2].ids)
    assert document["undecoded"] == ""
    # Megatron has no place for a loss mask, so none is claimed.
    assert (document["loss_tokens"] is None) == (format == "megatron")


def test_runs_hold_every_token_in_order(context: Context) -> None:
    row = show_row(context, Query({"id": "tokens", "n": "2"}))
    place = 0
    for run in row["runs"]:
        assert run["start"] == place
        place += run["tokens"]
        if "texts" in run:
            assert len(run["texts"]) == run["tokens"]
    assert place == row["tokens"] == 350
    in_loss = [run for run in row["runs"] if run["in_loss"]]
    assert sum(run["tokens"] for run in in_loss) == row["loss_tokens"] == 55
    assert "".join(in_loss[0]["texts"]).strip().startswith("He looks through")
    assert [run["kind"] for run in row["runs"]].count("image") == 1


def test_rows_are_listed_and_filtered(context: Context) -> None:
    folder = context.folder("tokens")
    found = filter_rows(folder, 16, 10, source="", wanted="", budget=Budget(60))
    assert [row["number"] for row in found["rows"]] == [16, 17]
    found = filter_rows(folder, 0, 5, source="chats", wanted="-0000001", budget=Budget(60))
    assert [row["key"][-2:] for row in found["rows"]] == ["10", "11", "12", "13", "14"]
    assert filter_rows(folder, 0, 5, source="x", wanted="", budget=Budget(60))["rows"] == []
