"""Recipes say what the command line says, and nothing else."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.cli.main import cli
from shardmill.cli.options import parse_plugin
from shardmill.cli.recipe import Step, read_recipe
from shardmill.errors import ConfigError
from shardmill.sources.filters import HasMedia, WithoutWords


def find(verb: str) -> click.Command | None:
    return cli.get_command(click.Context(cli), verb)


def recipe_of(tmp_path: Path, text: str) -> list[Step]:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return list(read_recipe(path, find).steps)


def test_a_step_is_the_command_that_one_would_type(tmp_path: Path) -> None:
    (step,) = recipe_of(
        tmp_path,
        """
        [[step]]
        verb = "ingest"
        in = ["a.jsonl", "-b.jsonl"]
        out = "shards"
        per_shard = 5
        max-shard-bytes = "1MB"
        filter = [{kind = "words", words = ["a,b", "c"]}, "media"]
        """,
    )
    words = step.words()
    assert words[words.index("--") :] == ["--", "a.jsonl", "-b.jsonl", "shards"]
    command = find("ingest")
    assert command is not None
    context = command.make_context("ingest", words)
    assert context.params["inputs"] == ("a.jsonl", "-b.jsonl")
    assert context.params["per_shard"] == 5
    assert context.params["max_shard_bytes"] == 1_000_000
    assert context.params["filters"] == (WithoutWords(words=("a,b", "c")), HasMedia())


def test_shared_flags_reach_the_verbs_that_know_them(tmp_path: Path) -> None:
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
    assert ingest.flags == {"workers": 1}
    assert plan.flags == {"capacity": 8}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no steps"),
        ("step = 3", "has no steps"),
        ("[[step]]\nverb = 'ingets'\nin = 'a'", "no verb 'ingets'"),
        ("[[step]]\nverb = 'run'\nin = 'a'\nstep = 1", "step 1"),
        ("[[step]]\nverb = 'ingest'\nin = 3", "`in` must be"),
        ("[[step]]\nverb = 'ingest'\nin = 'a'\nper-shrad = 5", "did you mean 'per-shard'"),
        ("[run]\nworkres = 2\n[[step]]\nverb = 'ingest'\nin = 'a'", "did you mean 'workers'"),
        ("[price]\n[[step]]\nverb = 'ingest'\nin = 'a'", "did you mean 'prices'"),
        ("[[step]\n", "cannot read .*recipe.toml"),
    ],
)
def test_mistakes_are_named_before_anything_runs(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        recipe_of(tmp_path, text)


VALUES = st.one_of(
    st.integers(-100, 100),
    st.booleans(),
    st.text("abc ,=[]{}", max_size=5).filter(lambda t: not set(t) & set("[]{}")),
    st.lists(st.text("abc,=", max_size=3), max_size=3),
)


@given(st.dictionaries(st.sampled_from(["one", "two", "three"]), VALUES))
def test_a_table_reads_back_as_the_plugin_that_it_describes(fields: dict[str, object]) -> None:
    step = Step(verb="v", inputs=(), out=None, flags={"x": {"kind": "k", **fields}})
    flag, text, *_ = step.words()
    assert flag == "--x"
    assert parse_plugin(text) == {"kind": "k", **fields}
