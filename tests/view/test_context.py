from __future__ import annotations

from pathlib import Path

import pytest
from packed_folder import make_packed
from starlette.testclient import TestClient

from shardmill.errors import ConfigError
from shardmill.model.plan import length_table
from shardmill.shards.plans import write_lengths
from shardmill.storage.objects import put_file
from shardmill.storage.path import as_path
from shardmill.view.access import Refused
from shardmill.view.answers import answer
from shardmill.view.context import MAX_CACHED, Context
from shardmill.view.packs import open_packs
from shardmill.view.rows import open_decoder
from shardmill.view.server import make_app


def test_what_was_made_is_kept_and_the_oldest_goes(context: Context) -> None:
    fresh, made = Context(context.root), list[int]()

    def make(number: int) -> int:
        made.append(number)
        return number

    for number in (*range(MAX_CACHED), *range(MAX_CACHED), MAX_CACHED, 0):
        assert fresh.cached((number,), lambda number=number: make(number)) == number  # type: ignore[misc]
    assert made == [*range(MAX_CACHED + 1), 0]


def test_packs_are_decoded_by_the_tokenizer_of_their_tokens(context: Context) -> None:
    assert open_decoder(context, "packs").problem == open_decoder(context, "tokens").problem == ""


def test_only_plans_and_packs_have_packs(context: Context) -> None:
    with pytest.raises(ConfigError):
        open_packs(context, "tokens")


def test_items_know_what_they_were_made_from(context: Context) -> None:
    inputs = {id: [item.id for item in context.inputs(id)] for id in context.items()}
    assert inputs == {
        "chats": [],
        "pairs": [],
        "sharp": ["pairs"],
        "tokens": ["chats"],
        "packs.plan": ["tokens"],
        "packs": ["packs.plan", "tokens"],
    }
    assert [item.id for item, _ in context.made_from("pairs")] == ["sharp"]


def test_packs_lead_back_to_tokens_and_samples(context: Context) -> None:
    for id in ("packs", "packs.plan"):
        tokens, samples = context.upstream(id, "tokens"), context.upstream(id, "samples")
        assert tokens is not None and tokens[0].id == "tokens"
        assert samples is not None and samples[0].id == "chats"


def test_a_folder_must_hold_what_is_asked_of_it(context: Context) -> None:
    with pytest.raises(ConfigError, match="holds tokens, not samples"):
        context.folder("tokens", "samples")
    with pytest.raises(ConfigError, match="is a plan"):
        context.folder("packs.plan")
    with pytest.raises(ConfigError, match="not a plan"):
        context.plan("tokens")


def test_lengths_of_tokens_fit_their_plan(context: Context) -> None:
    context.plan("packs.plan").check_table(context.lengths("tokens"))


def test_a_plan_belongs_to_the_table_whose_digest_it_names(tmp_path: Path) -> None:
    made = make_packed(tmp_path)
    shown = Context(tmp_path).data_of_plan("plan.bin")
    assert shown is not None and shown.id == "lengths.bin"
    made.lengths_path.unlink()
    write_lengths(made.lengths_path, length_table([7] * len(made.rows)))
    shown = Context(tmp_path).data_of_plan("plan.bin")
    assert shown is not None and shown.id == "tokens"


def test_a_stage_alone_has_no_way_out(pipeline: Path) -> None:
    context = Context(pipeline / "tokens")
    assert context.inputs(".") == []
    assert context.upstream(".", "samples") is None


def test_a_folder_with_a_link_out_is_left_out_of_the_list(pipeline: Path, tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "stage.json").symlink_to(pipeline / "tokens" / "stage.json")
    context = Context(tmp_path)
    assert list(context.folders()) == []
    with pytest.raises(Refused):
        context.folder("stage")


def test_a_pipeline_in_a_store_is_shown_like_a_local_one(
    pipeline: Path, context: Context, store_url: str
) -> None:
    for id in ("chats", "tokens", "packs", "packs.plan"):
        for path in sorted([pipeline / id, *(pipeline / id).rglob("*")]):
            if path.is_file():
                put_file(f"{store_url}/{path.relative_to(pipeline).as_posix()}", path)
    there = Context(as_path(store_url))
    drawn = answer(there, "map", {})
    assert [node["id"] for node in drawn["nodes"]] == ["chats", "packs", "packs.plan", "tokens"]
    assert {node["state"] for node in drawn["nodes"]} == {"done"}
    asked = {
        "pack": {"id": "packs", "n": "1"},
        "row": {"id": "tokens", "n": "2"},
        "sample": {"id": "chats", "n": "3"},
        "unit": {"id": "chats", "name": "000000"},
        "rejects": {"id": "chats"},
        "plots": {"id": "packs.plan", "world": "2"},
    }
    for name, params in asked.items():
        assert answer(there, name, params) == answer(context, name, params), name
    client = TestClient(make_app(there, "token", 1), base_url="http://localhost")
    params = {"id": "chats", "n": "17", "name": "mp4", "token": "token"}
    part = client.get("/media", params=params, headers={"range": "bytes=4-7"})
    assert part.content == b"ftyp"
