"""The command line is instant, knows its verbs, and shows no traceback for a mistake."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from invoked import invoke, run_main

import shardmill as sm
from shardmill.cli.main import VERBS, cli

DATA = Path(__file__).parents[2] / "demo" / "data"
HEAVY = ("torch", "PIL", "av", "ray", "transformers", "pyarrow", "numpy", "rich")


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


MISTAKES = {
    "ingst rows.jsonl out": (2, "UsageError", "did you mean 'ingest'?"),
    "plan tokens p.plan --capacity 0": (2, "UsageError", "'--capacity': 0 is not in the range"),
    "plan tokens p.plan": (2, "UsageError", "Missing option '--capacity'"),
    "ingest no.jsonl out": (2, "ConfigError", "no.jsonl"),
    "ingest rows.jsonl out --shape pairz": (
        2,
        "ConfigError",
        "shape: unknown kind 'pairz'; did you mean 'pair'?",
    ),
    "show rows.jsonl/x": (2, "UsageError", "does not exist"),
    "run cut.toml": (2, "ConfigError", "cut.toml"),
    "status .": (2, "ConfigError", "cannot tell what"),
    "ingest rows.jsonl rows.jsonl": (2, "ConfigError", "is a file"),
    "ingest bad.jsonl out --workers 0 --max-skip-rate 0": (1, "RunFailed", "1 unit"),
    "report . -o no/such/page.html": (2, "FileNotFoundError", "No such file"),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_message_and_with_json_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"text": "a"}\n')
    Path("bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    Path("cut.toml").write_text("[[step]\n")
    Path("tokens").mkdir()
    code, kind, text = MISTAKES[words]
    shown = "".join(run_main(*words.split(), code=code))
    assert text in shown and "Traceback" not in shown
    out, err = run_main(*words.split(), "--json", code=code)
    error = json.loads(out)["error"]
    assert error.keys() == {"kind", "message", "hint", "path", "member", "offset"}
    assert error["kind"] == kind and text in error["message"]
    assert err == "" or kind == "RunFailed"


def test_a_bug_is_told_in_full_and_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LookupError("at https://me:secret@host/x?sig=abc")

    monkeypatch.setattr("shardmill.cli.plan.plan.callback", fail)
    words = ("plan", Path(__file__), "p.plan", "--capacity", 1)
    _, err = run_main(*words, code=1)
    assert "Traceback" in err and "LookupError: at https://host/x" in err
    error = json.loads(run_main(*words, "--json", code=1)[0])["error"]
    assert error["kind"] == "LookupError" and "secret" not in error["message"]


# What the same word means in all verbs; a count is num_x, a share or a list has the plain word.
SAME_KEYS = {
    "path": str,
    "complete": bool,
    "num_units": int,
    "num_done": int,
    "num_in": int,
    "num_kept": int,
    "num_shards": int,
    "num_bytes": int,
    "num_samples": (int, list),
    "num_tokens": (int, list),
    "skipped": dict,
    "failures": list,
    "shards": list,
    "packs": list,
}
NOT_IN_JSON = {"out", "out_dir", "folder", "units", "samples", "bytes", "nsamples", "plan", "total"}


def test_fields_have_the_same_names_in_all_verbs(place: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    for words, keys in {
        "ingest {data}/texts.jsonl shards --shape text --per-shard 2": {"path", "run", "num_kept"},
        "tokenize {here}/shards tokens": {"path", "run", "num_in", "failures", "skipped"},
        "plan tokens p.plan --capacity 512": {"path", "num_samples", "num_packs"},
        "pack tokens p.plan packs --workers 0": {"path", "run"},
        "export tokens megatron --format megatron --workers 0": {"path", "run"},
        "remove shards fewer --keys keys.txt --workers 0": {"path", "run"},
        "status shards": {"path", "num_in", "num_kept", "failures", "skipped", "num_shards"},
        "check shards": {"path", "num_units", "num_files", "num_bytes", "problems", "sound"},
        "check shards --same shards": {"num_records", "same"},
        "diff shards fewer": {"num_samples", "added", "removed", "shards"},
        "why p.plan --step 0": {"step", "packs"},
        "report shards -o page.html": {"path", "num_bytes"},
        "doctor": {"findings"},
    }.items():
        found = json.loads(run_main(*words.format(data=DATA, here=place).split(), "--json")[0])
        assert keys <= found.keys(), words
        assert not NOT_IN_JSON & found.keys(), words
        for name in found.keys() & SAME_KEYS.keys():
            assert isinstance(found[name], SAME_KEYS[name]), (words, name)
        if "path" in found:
            assert Path(found["path"]).is_absolute(), words


# Of other programs, which messages say to call.
NOT_OURS = {"--local-dir", "--hard-dereference", "--help", "--repo-type", "--sparse"}


def test_flags_that_messages_ask_for_exist() -> None:
    commands = [cli.get_command(click.Context(cli), verb) for verb in VERBS]
    known = {
        flag
        for c in (cli, *commands)
        if c
        for p in c.params
        for flag in (*p.opts, *p.secondary_opts)
    }
    source = Path(sm.__file__).parent
    for path in source.rglob("*.py"):
        if path.name == "slurm.py":  # speaks to sbatch
            continue
        for flag, line in flags_in(ast.parse(path.read_text())):
            assert flag in known | NOT_OURS, f"{path.relative_to(source)}:{line} asks for {flag}"


def flags_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the flags in the texts of a module, but for those of its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            # In a sentence: what is called by its list of words is another program.
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", node.value * (" " in node.value)):
                yield flag, node.lineno


PRINTING = ["--help", "ingest --help", "status shards", "status shards --json", "show shards"]
PRINTING += ["doctor", "diff shards shards", "check shards", "plan tokens x.plan --capacity 512"]
PRINTING += ["nonsense", "plan tokens x --capacity 0 --json", "tokenize shards tokens --json"]


@pytest.mark.parametrize("words", PRINTING)
def test_nobody_reads(place: Path, words: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "shardmill", *words.split()],
        cwd=place,
        stdout=write_end,
        stderr=subprocess.STDOUT if "nonsense" in words else subprocess.PIPE,
    )
    os.close(write_end)
    assert not done.stderr and done.returncode == 128 + signal.SIGPIPE


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
    assert "there is no verb 'xyzzy'" in CliRunner().invoke(cli, ["xyzzy"]).output


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


@pytest.mark.parametrize(
    ("words", "typed", "wanted"),
    [
        ("ingest rows.jsonl out --shape", "int", {"internvid", "interleaved"}),
        ("ingest rows.jsonl out --filter", "image_s", {"image_size"}),
        ("export a b --format", "te", {"tensordict", "tensordict-labels", "tensordict-pairs"}),
        ("export a b --format", "megatron,", {"megatron,prefix=", "megatron,dtype="}),
        ("export a b --format", "megatron,prefix=x,d", {"megatron,prefix=x,dtype="}),
        ("export a b --format", "nobody,", set()),
        ("export a b --drop", "loss,sp", {"loss,spans"}),
        ("check a --ignore", "lo", {"loss"}),
        ("tokenize a b --template", "inter", {"interleaved"}),
    ],
)
def test_a_shell_completes_kinds_and_their_fields(words: str, typed: str, wanted: set[str]) -> None:
    shell = ShellComplete(cli, {}, "shardmill", "_SHARDMILL_COMPLETE")
    assert {item.value for item in shell.get_completions(words.split(), typed)} == wanted
