"""Places of a recipe: what is moved, and what must be there before anything runs."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from shardmill.cli.main import cli
from shardmill.cli.recipe import Step, check_inputs, moved
from shardmill.errors import ConfigError


def find(verb: str) -> click.Command | None:
    return cli.get_command(click.Context(cli), verb)


def step(verb: str, *inputs: str, out: str | None = None, **flags: object) -> Step:
    return Step(verb=verb, inputs=inputs, out=out, flags=flags)


def move(one: Step, **places: str) -> Step:
    command = find(one.verb)
    assert command is not None
    return moved(one, places, command)


def test_only_places_are_moved() -> None:
    made = step("export", "./mds", out="liquid", format="mds", codes="codes/")
    assert move(made, mds="1", codes="2", liquid="3") == step(
        "export", "1", out="3", format="mds", codes="2"
    )
    codes = {"kind": "shards", "folder": "codes"}
    made = step("tokenize", "in", out="out", layout="codes", codes=codes, template=["codes"])
    assert move(made, codes="2").flags == {
        "layout": "codes",
        "codes": {"kind": "shards", "folder": "2"},
        "template": ["codes"],
    }
    kind = {"kind": "mds", "samples": "mds"}
    assert move(step("export", "a", out="b", format=kind), mds="1").flags == {
        "format": {"kind": "mds", "samples": "1"}
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
    check_inputs([step("ingest", "raw.jsonl", out="made"), step("tokenize", name, out="t")], find)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("last", "told"),
    [
        (step("ingest", "raw.json", out="t"), "did you mean 'raw.jsonl'"),
        (step("filter", "maed", out="t"), "'maed' does not exist.* did you mean 'made'"),
        (step("filter", "t", out="t"), "'t' does not exist, and no step before writes it$"),
        (step("export", "made", out="t", codes="code"), "'code' does not exist"),
        (step("tokenize", "made", out="t", codes={"kind": "shards", "folder": "mad"}), "'made'"),
    ],
)
def test_what_will_not_be_there_is_refused(last: Step, told: str) -> None:
    with pytest.raises(ConfigError, match=f"step 2 .*{told}"):
        check_inputs([step("ingest", "raw.jsonl", out="made"), last], find)


@pytest.mark.usefixtures("folder")
def test_a_folder_that_a_verb_makes_need_not_exist() -> None:
    check_inputs([step("doctor", "new")], find)
