"""Recipes say what the functions of the front door say, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.api.recipe import Step, check_places, read_recipe
from shardmill.errors import ConfigError


def recipe_of(tmp_path: Path, text: str) -> list[Step]:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return list(read_recipe(path).steps)


def step(verb: str, *inputs: str, out: str | None = None, **options: object) -> Step:
    return Step(verb=verb, inputs=inputs, out=out, options=options)


def test_a_step_is_the_call_that_one_would_write(tmp_path: Path) -> None:
    text = """
        [[step]]
        verb = "ingest"
        in = ["a.jsonl", "-b.jsonl"]
        out = "shards"
        per_shard = 5
        max-shard-bytes = "1MB"
        filter = [{kind = "words", words = ["a,b", "c"]}, "media"]
        [[step]]
        verb = "codes"
        in = "shards"
        out = "codes"
        from = "vqcode_512"
    """
    ingest, codes = recipe_of(tmp_path, text)
    filters = [{"kind": "words", "words": ["a,b", "c"]}, "media"]
    assert ingest == step(
        "ingest",
        "a.jsonl",
        "-b.jsonl",
        out="shards",
        per_shard=5,
        max_shard_bytes="1MB",
        filter=filters,
    )
    assert codes.options == {"from_": "vqcode_512"}


def test_shared_options_reach_the_verbs_that_know_them(tmp_path: Path) -> None:
    ingest, plan = recipe_of(
        tmp_path,
        """
        [run]
        workers = 3
        [[step]]
        verb = "ingest"
        in = "a"
        out = "b"
        workers = 1
        [[step]]
        verb = "plan"
        in = "b"
        out = "c"
        capacity = 8
        """,
    )
    assert ingest.options == {"workers": 1}
    assert plan.options == {"capacity": 8}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no steps"),
        ("step = 3", "has no steps"),
        ("[[step]]\nverb = 'ingets'\nin = 'a'", "no verb 'ingets'"),
        ("[[step]]\nverb = 'run'\nin = 'a'\nstep = 1", "step 1"),
        ("[[step]]\nverb = 'ingest'\nin = 3", "`in` must be"),
        ("[[step]]\nverb = 'ingest'\nin = 'a'", "give `out`"),
        ("[[step]]\nverb = 'check'\nin = 'a'\nout = 'b'", "takes no `out`"),
        ("[[step]]\nverb = 'ingest'\nin = 'a'\nper-shrad = 5", "did you mean 'per-shard'"),
        ("[[step]]\nverb = 'ingest'\nin = 'a'\nper-shard = 'x'", "per-shard must be int, got 'x'"),
        ("[[step]]\nverb = 'pack'\nin = 'a'\nformat = 'x'", "format must be one of megatron, tar"),
        ("[run]\nworkres = 2\n[[step]]\nverb = 'check'\nin = 'a'", "did you mean 'workers'"),
        ("[price]\n[[step]]\nverb = 'ingest'\nin = 'a'", "did you mean 'prices'"),
        ("[[step]\n", "cannot read .*recipe.toml"),
    ],
)
def test_mistakes_are_named_before_anything_runs(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        recipe_of(tmp_path, text)


def test_only_places_are_moved() -> None:
    made = step("export", "./mds", out="liquid", format="mds", codes="codes/")
    places = {"mds": "1", "codes": "2", "liquid": "3"}
    assert made.moved(places) == step("export", "1", out="3", format="mds", codes="2")
    codes = {"kind": "shards", "folder": "codes"}
    made = step("tokenize", "in", out="out", layout="codes", codes=codes, template=["codes"])
    assert made.moved({"codes": "2"}).options == {
        "layout": "codes",
        "codes": {"kind": "shards", "folder": "2"},
        "template": ["codes"],
    }
    assert step("tokenize", "in", out="out", codes="codes").moved({"codes": "2"}).options == {
        "codes": "2"
    }
    assert step("tokenize", "in", out="out", codes="field,field=codes").moved({"codes": "2"}) == (
        step("tokenize", "in", out="out", codes={"kind": "field", "field": "codes"})
    )
    kind = {"kind": "webdataset", "samples": "mds"}
    assert step("export", "a", out="b", format=kind).moved({"mds": "1"}).options == {
        "format": {"kind": "webdataset", "samples": "1"}
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw.jsonl").touch()
    (tmp_path / "old.idx").touch()
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "name",
    [
        "raw.jsonl",
        "./raw.jsonl",
        "made",
        "made/",
        "made/part.tar",
        "x-{0..3}.tar",
        "s3://b/x",
        "old",
    ],
)
def test_what_is_there_or_will_be_is_taken(name: str) -> None:
    check_places([step("ingest", "raw.jsonl", out="made"), step("tokenize", name, out="t")])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("last", "told"),
    [
        (step("ingest", "raw.json", out="t"), "did you mean 'raw.jsonl'"),
        (step("filter", "maed", out="t"), "'maed' does not exist.* did you mean 'made'"),
        (step("filter", "t", out="t"), "'t' does not exist, and no step before writes it$"),
        (step("export", "made", out="t", format="hf", codes="code"), "'code' does not exist"),
        (step("tokenize", "made", out="t", codes={"kind": "shards", "folder": "mad"}), "'made'"),
        (step("tokenize", "made", out="t", codes="mad"), "'made'"),
    ],
)
def test_what_will_not_be_there_is_refused(last: Step, told: str) -> None:
    with pytest.raises(ConfigError, match=f"step 2 .*{told}"):
        check_places([step("ingest", "raw.jsonl", out="made"), last])


@pytest.mark.usefixtures("folder")
def test_a_folder_that_a_verb_writes_need_not_exist() -> None:
    made = step("ingest", "raw.jsonl", out="made")
    check_places([made, step("check", "made", dump="new", pairs=True)])
