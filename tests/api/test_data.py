"""`sm.open` knows what lies in a place, and what it returns answers alike for all contents."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke, invoke_json

import shardmill as sm
from shardmill.api.data import Codes, Data, Export, Lengths, Packs, Plan, Project, Samples, Tokens
from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.sample import Sample

NUM_ROWS = 10


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each content: samples, codes, tokens, packs, lengths, a plan, exports."""
    folder = tmp_path_factory.mktemp("place")
    rows: list[dict[str, Any]] = [
        {"image": f"{n}.jpg", "caption": f"image number {n}"} for n in range(NUM_ROWS)
    ]
    for n in range(NUM_ROWS - 1):  # the last one is missing
        (folder / f"{n}.jpg").write_bytes(JPEG)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = ({"text": f"the {n}th text of them all", "vq": [n, 1, 2, 3]} for n in range(NUM_ROWS))
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    pairs = sm.ingest(folder / "rows.jsonl", folder / "pairs", per_shard=4, workers=0)
    samples = sm.ingest(folder / "texts.jsonl", folder / "samples", per_shard=4, workers=0)
    sm.codes(samples, folder / "codes", from_="vq", workers=0)
    tokens = sm.tokenize(samples, folder / "tokens", workers=0)
    plan = sm.plan(tokens, folder / "packs.plan", capacity=32)
    sm.pack(tokens, plan, folder / "packs", workers=0)
    sm.pack(tokens, plan, folder / "tars", format="tar", workers=0)
    sm.measure(pairs, folder / "lengths", model="llava", estimate=True, workers=0)
    sm.export(tokens, folder / "megatron", format="megatron", workers=0)
    sm.export(samples, folder / "webdataset", format="webdataset", workers=0)
    return folder


JPEG = (Path(__file__).parents[2] / "demo" / "data" / "photos" / "cat.jpg").read_bytes()
CONTENTS: dict[str, type[Data[Any]]] = {
    "pairs": Samples,
    "samples": Samples,
    "codes": Codes,
    "tokens": Tokens,
    "packs.plan": Plan,
    "packs": Packs,
    "tars": Packs,
    "lengths": Lengths,
    "lengths/lengths.bin": Lengths,
    "megatron": Export,
    "megatron/shards": Export,
    "webdataset": Samples,
}


STAGES = {*CONTENTS} - {"lengths/lengths.bin", "megatron/shards"}


def test_a_folder_of_several_is_opened_by_their_names(place: Path) -> None:
    project = sm.open(place)
    assert isinstance(project, Project) and project.complete
    assert {*project.keys()} == STAGES and len(project) == len(STAGES)
    assert type(project["tokens"]) is Tokens and "packs.plan" in repr(project)
    with pytest.raises(KeyError, match=r"holds no 'nobody', but codes, lengths"):
        project["nobody"]


@pytest.mark.parametrize("name", [".", *CONTENTS])
def test_every_command_that_looks_takes_every_place(place: Path, name: str) -> None:
    for words in (("status",), ("check", "--workers", 0), ("show",)):
        found = invoke(*words, place / name)
        assert found.output
        if name == ".":
            assert all(stage in found.output for stage in STAGES)
    for words in (("status",), ("check", "--workers", 0)):
        found = invoke_json(*words, place / name)
        assert Path(found["path"]) == place / name
        assert ("stages" in found) == (name == ".")


def test_a_check_of_several_finds_what_is_broken_in_one(place: Path, tmp_path: Path) -> None:
    for name in ("tokens", "samples"):
        shutil.copytree(place / name, tmp_path / name)
    plan = (place / "packs.plan").read_bytes()
    (tmp_path / "packs.plan").write_bytes(plan[:-8])
    tar = tmp_path / "samples" / "shards" / "000000.tar"
    tar.write_bytes(tar.read_bytes()[:-512])
    found = sm.check(tmp_path, workers=0)
    assert found.parts is not None and not found.sound
    assert {part.path.name: part.sound for part in found.parts} == {
        "tokens": True,
        "samples": False,
        "packs.plan": False,
    }
    with pytest.raises(ConfigError, match="no folder of one stage, which --repair needs"):
        sm.check(tmp_path, repair=True)


def told(item: Any) -> str:
    """Return what tells an item from others; media are views of memory."""
    return item.key if isinstance(item, Sample) else str(item)


@pytest.mark.parametrize("name", CONTENTS)
def test_what_lies_there_is_known(place: Path, name: str) -> None:
    found = sm.open(place / name)
    assert type(found) is CONTENTS[name]
    assert repr(found).startswith(f"{CONTENTS[name].__name__} ") and "\n" not in repr(found)
    assert repr(found)[:5] in found._repr_html_()
    assert os.fspath(found) == str(place / name)


@pytest.mark.parametrize("name", CONTENTS)
def test_items_are_found_by_number_and_slice(place: Path, name: str) -> None:
    found = sm.open(place / name)
    listed = list(found)
    assert len(listed) == len(found) > 0
    assert told(found[0]) == told(listed[0]) and told(found[-1]) == told(listed[-1])
    assert list(map(told, found[1:3])) == list(map(told, listed[1:3]))
    for number in (len(found), -len(found) - 1):
        with pytest.raises(IndexError, match=f"not {number}"):
            found[number]


@pytest.mark.parametrize("name", ["pairs", "samples", "codes", "tokens", "packs", "webdataset"])
def test_items_are_found_by_key(place: Path, name: str) -> None:
    found = sm.open(place / name)
    keys = list(found.keys())
    assert len(keys) == len(found) and keys[1] in found and "nobody" not in found
    assert found.find(keys[1]) == 1
    assert told(found[keys[1]]) == told(found[1])
    with pytest.raises(KeyError, match="nobody"):
        found["nobody"]


@pytest.mark.parametrize("name", ["packs.plan", "lengths", "megatron"])
def test_what_has_no_keys_says_so(place: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="has no keys: ask for items by number"):
        sm.open(place / name).keys()


def test_samples_count_what_was_skipped(place: Path) -> None:
    pairs = sm.open(place / "pairs")
    assert pairs.counts == (NUM_ROWS, NUM_ROWS - 1)
    assert pairs.skipped == {"missing file": 1}
    (reject,) = pairs.rejects()
    assert reject.reason == "missing file" and reject.key == f"rows-{NUM_ROWS - 1:08d}"
    assert "9 samples in 3 shards" in repr(pairs) and "1 skipped" in repr(pairs)
    assert "missing file" in pairs._repr_html_()
    assert pairs[3].text == "image number 3" and bytes(pairs[3].images[0]) == JPEG


def test_a_plan_names_what_it_left_out(place: Path, tmp_path: Path) -> None:
    plan = sm.plan(
        place / "tokens", tmp_path / "small.plan", capacity=8, overlong="drop", allow_empty=True
    )
    num_in, num_kept = plan.counts
    assert num_in == NUM_ROWS
    assert sum(plan.skipped.values()) == len(list(plan.rejects())) == num_in - num_kept
    rows = sorted(row for pack in sm.open(place / "packs.plan") for row in pack.tolist())
    assert rows == list(range(NUM_ROWS))


def test_the_spec_is_what_made_it(place: Path) -> None:
    assert sm.open(place / "packs.plan").spec.capacity == 32
    assert sm.open(place / "samples").spec.per_shard == 4


def test_an_unfinished_folder_says_what_to_run(place: Path, tmp_path: Path) -> None:
    made = sm.ingest(place / "texts.jsonl", tmp_path / "out", per_shard=4, part="1/2", workers=0)
    assert not made.complete and "not finished" in repr(made)
    for ask in (lambda: len(made), lambda: sm.open(tmp_path / "out")):
        with pytest.raises(ShardmillError, match=r"\d of 3 units are missing\. Run the"):
            ask()
    again = sm.ingest(place / "texts.jsonl", tmp_path / "out", per_shard=4, workers=0)
    assert again.complete and len(again) == NUM_ROWS


def test_what_is_nothing_of_all_this_is_refused(place: Path) -> None:
    with pytest.raises(ShardmillError, match=r"cannot tell what .*rows.jsonl holds"):
        sm.open(place / "rows.jsonl")
    with pytest.raises(ShardmillError, match="nowhere"):
        sm.open(place / "nowhere")


def test_the_order_of_a_plan_is_that_of_the_loader(place: Path) -> None:
    plan = Plan(place / "packs.plan")
    sampler = sm.PackedDataset(plan, place / "tokens").sampler(seed=7)
    for _ in range(3):
        state = sampler.start
        taken = [number for step in sampler for number in step]
        assert taken == plan.order(seed=7, epoch=state.epoch).tolist()
        assert sorted(taken) == list(range(len(plan)))
