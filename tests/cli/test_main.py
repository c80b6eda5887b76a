"""The command line is instant, knows its verbs, and shows no traceback for a mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from invoked import invoke

from shardmill.cli.main import VERBS, cli

HEAVY = ("torch", "PIL", "av", "ray", "transformers", "pyarrow", "numba", "numpy", "rich")


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from shardmill.cli.main import cli;"
        "print(CliRunner().invoke(cli, ['--help']).output); print(sorted(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "Verbs:" in output
    loaded = output[output.rindex("[") :]
    assert [name for name in HEAVY if f"'{name}'" in loaded] == []


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_explains_itself_as_the_table_does(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None and command.name == verb
    assert command.get_short_help_str(limit=200) == VERBS[verb][1]
    result = CliRunner().invoke(cli, [verb, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.output


def test_a_users_mistake_is_one_message_and_exit_code_2() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "shardmill", "ingest", "no/such/file.jsonl", "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert "no/such/file.jsonl" in run.stderr
    assert "Traceback" not in run.stderr


def test_what_the_system_refuses_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    run = subprocess.run(
        [sys.executable, "-m", "shardmill", "report", "data", "-o", "no/such/report.html"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode == 2
    assert "No such file or directory" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_pipe_that_closes_early_ends_a_verb_in_silence(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """More is shown than a pipe holds, so that the verb writes after its reader has gone."""
    rows = (json.dumps({"text": f"{n} " * 900}) + "\n" for n in range(200))
    (tmp_path / "texts.jsonl").write_text("".join(rows))
    invoke("ingest", tmp_path / "texts.jsonl", tmp_path / "shards", "--workers", 0)
    words = ("show", str(tmp_path / "shards"), "--count", "200", *flags)
    with subprocess.Popen(
        [sys.executable, "-m", "shardmill", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as shown:
        assert shown.stdout is not None and shown.stderr is not None
        shown.stdout.readline()
        shown.stdout.close()
        assert shown.stderr.read() == b""
    assert shown.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_a_closed_stream_does_not_matter(tmp_path: Path, closed: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    words = f"{sys.executable} -m shardmill ingest rows.jsonl out --workers 0 {closed}"
    assert (
        subprocess.run(["sh", "-c", words], cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 0
    )
    assert (tmp_path / "out" / "manifest.json").is_file()


def test_a_mistyped_verb_is_guessed() -> None:
    result = CliRunner().invoke(cli, ["tokenise", "in", "out"])
    assert result.exit_code == 2
    assert "did you mean 'tokenize'?" in result.output
    assert "No such command" in CliRunner().invoke(cli, ["xyzzy"]).output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_verbs_and_options(shell: str) -> None:
    def complete(words: str, word: str) -> str:
        cursor = {"COMP_WORDS": words, "COMP_CWORD": word if shell == "fish" else "1"}
        if word.startswith("--"):
            cursor["COMP_CWORD"] = word if shell == "fish" else "2"
        return subprocess.run(
            [sys.executable, "-m", "shardmill"],
            env={**os.environ, **cursor, "_SHARDMILL_COMPLETE": f"{shell}_complete"},
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    assert "tokenize" in complete("shardmill tok", "tok")
    assert "--capacity" in complete("shardmill plan --cap", "--cap")


def test_every_verb_is_there_without_any_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    names = {re.match(r"[\w-]+", line)[0] for lines in extras for line in lines}  # type: ignore[index]
    code = (
        "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:])); import click;"
        "from shardmill.cli.main import VERBS, cli;"
        "[cli.get_command(click.Context(cli), verb) for verb in VERBS]"
    )
    modules = {"pillow": "PIL"}
    blocked = sorted(modules.get(name, name) for name in names - {"shardmill"})
    assert "torch" in blocked and "PIL" in blocked
    subprocess.run([sys.executable, "-c", code, *blocked], check=True)
