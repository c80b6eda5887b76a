"""`shardmill run`: all steps in order, again for nothing, and what they take beforehand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardmill.api.recipe import Estimate
from shardmill.cli.main import cli
from shardmill.cli.run import print_quote
from shardmill.shards.ledger import open_manifest

RECIPE = """
[run]
workers = 0

[prices]
cpu_hour = 3600
gb_month = 1e9

[[step]]
verb = "ingest"
in = "texts.jsonl"
out = "shards"
per-shard = 10

[[step]]
verb = "tokenize"
in = "shards"
out = "tokens"

[[step]]
verb = "plan"
in = "tokens"
out = "packs.plan"
capacity = 64

[[step]]
verb = "pack"
in = ["tokens", "packs.plan"]
out = "packs"

[[step]]
verb = "check"
in = "packs"
"""
NUM_ROWS = 200


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    rows = (json.dumps({"text": f"the {n}th text of them all"}) for n in range(NUM_ROWS))
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def invoke(*words: object) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)))


def test_all_steps_run_and_then_have_nothing_to_do(recipe: Path) -> None:
    first = invoke("run", recipe)
    assert first.exit_code == 0, first.output
    assert open_manifest(recipe.parent / "packs").num_samples == NUM_ROWS
    plan_time = (recipe.parent / "packs.plan").stat().st_mtime_ns
    again = invoke("run", recipe)
    assert again.output.count("nothing to do") == 3
    assert (recipe.parent / "packs.plan").stat().st_mtime_ns == plan_time


def test_steps_print_one_json_line_each(recipe: Path) -> None:
    done = invoke("run", recipe, "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 5
    assert lines[0]["num_kept"] == NUM_ROWS


def test_a_step_that_fails_stops_the_recipe(recipe: Path) -> None:
    (recipe.parent / "texts.jsonl").write_text('{"text": "good"}\n{"text": \n')
    recipe.write_text(RECIPE.replace("per-shard = 10", "max-skip-rate = 0"))
    done = invoke("run", recipe)
    assert done.exit_code == 1
    assert "stopped at step 1" in done.output
    assert not (recipe.parent / "tokens").exists()


def test_a_quote_tells_the_whole_from_a_few_units_and_leaves_nothing(recipe: Path) -> None:
    before = sorted(os.listdir(recipe.parent))
    done = invoke("run", recipe, "--quote", "--units", 2, "--json")
    assert done.exit_code == 0, done.output
    assert sorted(os.listdir(recipe.parent)) == before
    steps = json.loads(done.stdout.splitlines()[-1])["steps"]
    ingest, tokens, _plan, packs = steps
    assert (ingest["num_tried"], ingest["num_units"], ingest["num_samples"]) == (2, 20, 200)
    assert (tokens["num_tried"], tokens["num_units"], tokens["num_samples"]) == (2, 20, 200)
    assert packs["num_samples"] == 200
    invoke("run", recipe)
    for step, folder in ((ingest, "shards"), (tokens, "tokens")):
        shards = open_manifest(recipe.parent / folder).shards
        real = sum(file.num_bytes for shard in shards for file in shard.files.values())
        assert step["num_bytes"] == pytest.approx(real, rel=0.05)
    assert ingest["cost"] == pytest.approx(ingest["seconds"], rel=1e-6)


def test_a_quote_reads_as_a_table(recipe: Path) -> None:
    done = invoke("run", recipe, "--quote")
    assert "slowest" in done.output
    assert "a month for what it leaves" in done.output
    unpriced = recipe.with_name("unpriced.toml")
    unpriced.write_text(RECIPE.replace("[prices]\ncpu_hour = 3600\ngb_month = 1e9\n", ""))
    assert "give [prices]" in invoke("run", unpriced, "--quote").output


@pytest.mark.parametrize(
    ("crowded", "said"), [(False, ", bound by disk or network\n"), (True, "%\n")]
)
def test_a_quote_tells_what_binds_only_if_it_knows(
    capsys: pytest.CaptureFixture[str], crowded: bool, said: str
) -> None:
    estimate = Estimate(
        step="ingest raw shards",
        scale=1.0,
        num_tried=1,
        num_units=9,
        num_samples=90,
        num_workers=2,
        seconds=3.0,
        num_bytes=1000,
        busy=0.1,
        crowded=crowded,
        on_gpu=False,
        prices={},
    )
    print_quote([estimate])
    (slowest,) = (line for line in capsys.readouterr().out.splitlines(True) if "slowest" in line)
    assert slowest.endswith(said)


def test_a_recipe_that_writes_nothing_has_no_quote(recipe: Path) -> None:
    (recipe.parent / "shards").mkdir()
    recipe.write_text('[[step]]\nverb = "check"\nin = "shards"\n')
    assert "nothing to try" in str(invoke("run", recipe, "--quote").exception)


def test_a_quote_moves_places_only(recipe: Path) -> None:
    steps = RECIPE.partition('[[step]]\nverb = "plan"')[0].replace('"shards"', '"text"')
    steps = steps.replace('out = "tokens"', 'out = "hf"\ntemplate = "text"')
    export = '[[step]]\nverb = "export"\nin = "hf"\nout = "megatron"\nformat = "megatron"\n'
    recipe.write_text(steps + export)
    done = invoke("run", recipe, "--quote", "--json")
    assert done.exit_code == 0, (done.output, done.exception)


def test_a_misspelt_input_is_named_before_the_first_step_starts(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace('in = "shards"', 'in = "shrads"'))
    done = invoke("run", recipe)
    assert "step 2 (tokenize shrads → tokens): 'shrads' does not exist" in str(done.exception)
    assert "did you mean 'shards'?" in str(done.exception)
    assert not (recipe.parent / "shards").exists()


def test_a_quote_that_cannot_be_made_names_the_step(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("capacity = 64", "capacity = 2"))
    done = invoke("run", recipe, "--quote")
    assert done.exit_code != 0
    assert "plan tokens" in str(done.exception) + done.output
