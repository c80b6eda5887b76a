from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from invoked import invoke
from packed_folder import make_packed
from starlette.testclient import TestClient

from shardmill.errors import ConfigError, NotFound
from shardmill.model.plan import length_table
from shardmill.shards.plans import write_lengths, write_plan
from shardmill.storage.objects import put_file
from shardmill.storage.path import as_path
from shardmill.view import context as context_module
from shardmill.view.answers import answer
from shardmill.view.context import (
    MAX_CACHED,
    AccessPolicy,
    Context,
    Folder,
    Item,
    ItemList,
    Refused,
    inputs_of,
)
from shardmill.view.server import make_app
from shardmill.view.tokens import open_decoder, open_packs


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
    write_plan(tmp_path / "other.plan", replace(made.plan, lengths_digest="0"))
    assert Context(tmp_path).data_of_plan("other.plan") is None


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
        told = json.dumps(answer(there, name, params)).replace(store_url, str(pipeline))
        assert json.loads(told) == json.loads(json.dumps(answer(context, name, params))), name
    client = TestClient(make_app(there, "token", 1), base_url="http://localhost")
    params = {"id": "chats", "n": "17", "name": "mp4", "token": "token"}
    part = client.get("/media", params=params, headers={"range": "bytes=4-7"})
    assert part.content == b"ftyp"


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("root/stage/shards", "root/stage/receipts", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outside" / "secret.tar").write_text("secret")
    return tmp_path / "root", tmp_path / "outside"


def test_what_lies_inside_is_held_and_what_climbs_out_is_not(places: tuple[Path, Path]) -> None:
    root, outside = places
    policy = AccessPolicy.below(root)
    assert policy.allows(root / "stage")
    assert not policy.allows(root / ".." / "outside")
    assert not policy.allows(root.parent / "root-beside")
    assert not policy.allows(outside)


@pytest.mark.parametrize("place", ["stage/shards/0.tar", "stage/stage.json", "stage/rejects"])
def test_a_link_out_of_the_folder_is_refused(places: tuple[Path, Path], place: str) -> None:
    root, outside = places
    policy = AccessPolicy.below(root)
    policy.check_links(root / "stage")
    (root / place).symlink_to(outside / "secret.tar")
    with pytest.raises(Refused, match="--allow"):
        policy.check_links(root / "stage")
    AccessPolicy.below(root, (str(outside),)).check_links(root / "stage")


def test_a_link_that_stays_inside_is_followed(places: tuple[Path, Path]) -> None:
    root, _ = places
    (root / "stage" / "shards" / "1.tar").symlink_to(root / "stage" / "receipts")
    AccessPolicy.below(root).check_links(root / "stage")


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("s3://bucket/data/x.tar", True),
        ("s3://bucket/data-two/x.tar", False),
        ("s3://bucket/data/../keys/x.tar", False),
        ("s3://other/data/x.tar", False),
        ("/etc/passwd", False),
        ("file:///etc/passwd", False),
    ],
)
def test_tars_of_an_index_are_read_only_where_allowed(
    places: tuple[Path, Path], url: str, good: bool
) -> None:
    policy = AccessPolicy.below(places[0], ("s3://bucket/data",))
    if good:
        policy.check_url(url)
        return
    with pytest.raises(Refused):
        policy.check_url(url)


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
    with pytest.raises(NotFound):
        Context(pipeline).item(id)


def test_a_linked_folder_outside_is_no_item(pipeline: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pipeline / "tokens")
    assert make(tmp_path).items() == {}
    allowed = ItemList(tmp_path, AccessPolicy.below(tmp_path, (str(pipeline),)))
    assert list(allowed.items()) == ["link"]


def test_a_stage_that_begins_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_module, "RESCAN_S", -1.0)
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


def test_inputs_are_named_once_and_never_the_folder_itself() -> None:
    items = items_of("chats", "codes", "tokens")
    read = {"samples": ["chats"], "input": ["chats"], "codes": ["codes"], "raw": ["tokens", "x"]}
    reads = {role: [f"/work/runs/{name}" for name in names] for role, names in read.items()}
    found = inputs_of({**reads, "other": ["/etc/passwd"]}, Path("/work/runs/tokens"), items)
    assert [item.id for item in found] == ["chats", "codes"]


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
    flags = ("--format", "megatron", "--workers", 0, "--drop", "loss,modality,spans")
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
    with pytest.raises(NotFound):
        folder.unit("../000001")


def test_a_folder_with_a_link_out_is_not_opened(unfinished: Path) -> None:
    folder = open_folder(unfinished)
    folder.check()
    (unfinished / "rejects" / "000003.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(Refused):
        folder.check()


def test_nothing_is_found_in_a_folder_that_has_just_begun(pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline / "pairs", tmp_path / "pairs")
    for path in [tmp_path / "pairs" / "manifest.json", *tmp_path.glob("pairs/receipts/*")]:
        path.unlink()
    folder = Context(tmp_path).folder("pairs")
    assert folder.find_sample("pairs-00000033", "000004") is None


def test_a_sample_is_found_by_key_wherever_it_is(context: Context) -> None:
    folder = context.folder("pairs")
    assert folder.find_sample("pairs-00000033", "000004") == 31
    assert folder.find_sample("pairs-00000033", "no such shard") == 31
    assert folder.find_sample("pairs-00000007") is None  # it was rejected
