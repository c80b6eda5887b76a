"""`import shardmill as sm`: light, lazy, typed, and all that a user needs."""

from __future__ import annotations

import re
import subprocess
import sys
from inspect import Parameter, signature
from pathlib import Path
from typing import get_type_hints

import click
import pytest

import shardmill as sm
from shardmill.api import recipe
from shardmill.api.running import RUN_DEFAULTS, RunOptions
from shardmill.cli.main import cli

HEAVY = ("numpy", "torch", "ray", "transformers", "pyarrow", "av", "click", "rich")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_loads_nothing_heavy() -> None:
    loaded = run_python("import sys, shardmill; print(*sys.modules)").split()
    assert not {name.split(".")[0] for name in loaded} & set(HEAVY)
    ours = [name for name in loaded if name.startswith("shardmill")]
    assert ours == ["shardmill"]


def test_importing_takes_no_time() -> None:
    code = "import time; t = time.process_time(); import shardmill; print(time.process_time() - t)"
    assert min(float(run_python(code)) for _ in range(5)) < 0.05


def test_every_name_is_there_and_listed() -> None:
    assert set(sm.__all__) <= set(dir(sm))
    for name in sm.__all__:
        assert getattr(sm, name) is not None
    for name in set(sm.__all__) - {"__version__"}:
        assert getattr(sm, name).__doc__, f"{name} says nothing of itself"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(sm, "ingset")


def test_no_module_has_the_name_of_a_verb() -> None:
    # importing shardmill.pack would put the module where sm.pack, the verb, is looked up
    modules = {path.stem for path in Path(sm.__file__).parent.iterdir()}
    assert not modules & set(sm.__all__)


def test_type_checkers_see_the_names(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import shardmill as sm\n"
        "shards = sm.ingest('rows.jsonl', 'shards', workers=8)\n"
        "reveal_type(shards)\n"
        "reveal_type(shards[3].text)\n"
        "reveal_type(sm.plan(shards, 'packs.plan', capacity=8)[0:2])\n"
        "sm.ingest('rows.jsonl', 'shards', wrokers=8)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert 'Revealed type is "shardmill.api.data.Samples"' in done.stdout
    assert re.search(r'Revealed type is "(builtins\.)?str"', done.stdout)
    assert 'Unexpected keyword argument "wrokers"' in done.stdout
    assert done.stdout.count("error:") == 1, done.stdout


VERBS = tuple(recipe.VERBS)
# What a command has and a function has not: how it reports, and what it prints instead of working.
COMMAND_ONLY = {"as_json", "dry_run", "print_sizes"}


def command_of(verb: str) -> click.Command:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return command


@pytest.mark.parametrize("verb", VERBS)
def test_a_function_has_the_arguments_of_its_command(verb: str) -> None:
    command = {param.name for param in command_of(verb).params} - COMMAND_ONLY
    parameters = signature(getattr(sm, verb)).parameters.values()
    function = {p.name for p in parameters if p.kind is not Parameter.VAR_KEYWORD}
    if len(function) < len(parameters):
        function |= get_type_hints(RunOptions).keys() - {"progress"}
    assert function == command


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_is_spelled_as_the_argument(verb: str) -> None:
    options = [param for param in command_of(verb).params if isinstance(param, click.Option)]
    for option in options:
        if option.name not in COMMAND_ONLY:
            assert f"--{str(option.name).rstrip('_').replace('_', '-')}" in option.opts


@pytest.mark.parametrize("verb", VERBS)
def test_a_function_has_the_defaults_of_its_command(verb: str) -> None:
    command = command_of(verb)
    context = command.make_context(verb, [], resilient_parsing=True)
    defaults = {param.name: param.get_default(context) for param in command.params}
    for parameter in signature(getattr(sm, verb)).parameters.values():
        if parameter.kind is Parameter.KEYWORD_ONLY:
            expected = None if parameter.default is Parameter.empty else parameter.default
            found = defaults[parameter.name]
            is_unset = found is None or "UNSET" in repr(found)
            assert (is_unset and expected in (None, ())) or found == expected, parameter.name


def test_the_verbs_of_recipes_are_those_of_the_front_door() -> None:
    assert {*VERBS, "run", "quote"} <= set(sm.__all__)
    assert set(VERBS) <= set(cli.list_commands(click.Context(cli)))


def test_runs_have_the_defaults_of_the_commands() -> None:
    params = command_of("ingest").make_context("ingest", [], resilient_parsing=True).params
    assert {name: params[name] for name in RUN_DEFAULTS} == RUN_DEFAULTS
