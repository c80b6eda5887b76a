"""A folder of data brings modules, or names them: none is loaded unless the user named it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from packed_folder import make_packed

import shardmill as sm
from shardmill.api.values import to_plugin
from shardmill.cli.main import cli
from shardmill.errors import ShardmillError
from shardmill.model.codec import code_path, from_plain, to_plain
from shardmill.plugins import FILTERS
from shardmill.shards.plans import open_plan, write_plan
from shardmill.train.plans import EpochPlans

NAMES = ("orjson", "queue", "numpy", "xxhash", "lmdb", "selectors", "multiprocessing", "click")
OWN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class All:
    def check(self, sample, sizes):
        pass
"""
APART = "import sys; sys.path.remove('')\n"  # as if the program lay elsewhere


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which every import leaves a mark, but that of the user's own module."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in (*NAMES, "evil"):
        mark = f"open({str(tmp_path / 'loaded')!r}, 'a').write('{name} ')\n"
        (folder / f"{name}.py").write_text(f"{mark}raise SystemExit(9)\n")
    (folder / "rows.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (folder / "own_filters.py").write_text(OWN)
    monkeypatch.chdir(folder)
    return folder


def run(folder: Path, *words: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], env={**os.environ, **env}, capture_output=True, text=True
    )
    mark = folder.parent / "loaded"
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("flags", [(), ("-P",)])
def test_no_command_or_worker_loads_what_lies_there(hostile: Path, flags: tuple[str]) -> None:
    verb = ("-m", "shardmill", "ingest", "rows.jsonl", "out", "--workers", "1")
    run(hostile, *flags, *verb, "--filter", "own_filters:All")
    assert "own_filters:All" in (hostile / "out" / "stage.json").read_text()


def test_an_empty_entry_of_pythonpath_does_not_reach_workers(hostile: Path) -> None:
    program = (
        f"{APART}import os, shardmill as sm\n"
        "os.environ['PYTHONPATH'] = os.pathsep + '/nowhere'\n"
        "sm.ingest('rows.jsonl', 'out', workers=1)"
    )
    run(hostile, "-c", program)


def test_spawned_processes_do_not_look_there(hostile: Path) -> None:
    program = (
        f"{APART}from concurrent.futures import ProcessPoolExecutor\n"
        "from shardmill.machine import spawn_context, count_cpus\n"
        "with ProcessPoolExecutor(1, spawn_context()) as pool:\n"
        "    print(pool.submit(count_cpus).result() > 0)\n"
    )
    assert run(hostile, "-c", program).strip() == "True"


def test_the_planner_of_epochs_does_not_look_there(hostile: Path, tmp_path: Path) -> None:
    made = make_packed(tmp_path)
    program = (
        f"{APART}from shardmill.train.plans import EpochPlans\n"
        f"plans = EpochPlans({str(made.plan_path)!r}, {str(made.lengths_path)!r}, 'plans')\n"
        "plans.order(0, 0)\n"
        "assert plans._planner.wait() == 0\n"
    )
    run(hostile, "-c", program)


def test_a_job_holds_the_folders_of_the_modules_that_it_names_only(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    own = to_plugin(FILTERS, "own_filters:All", where="filter")
    assert sys.path == [*before, str(hostile)]
    assert code_path(to_plain([own])) == [str(hostile)]
    assert code_path(["evil:All", "words"]) == []
    del sys.modules["own_filters"]


def refused(action: Callable[[], object]) -> None:
    """The message says what was found, and how to let it in."""
    with pytest.raises(ShardmillError, match=r"evil:Thing.*shardmill --trust evil:Thing"):
        action()
    assert "evil" not in sys.modules


SPECS = {
    "a stage": {"kind": "evil:Thing"},
    "a filter": {"kind": "stage/filter", "input_dir": "x", "filters": [{"kind": "evil:Thing"}]},
    "a function": {"kind": "visual/function", "path": "evil:Thing"},
}


@pytest.mark.parametrize("what", SPECS)
def test_data_names_our_own_classes_only(hostile: Path, what: str) -> None:
    sys.path.insert(0, str(hostile))
    try:
        refused(lambda: from_plain(SPECS[what]))
    finally:
        sys.path.remove(str(hostile))


def test_a_class_of_ours_that_stands_in_no_table_is_refused_too() -> None:
    with pytest.raises(ShardmillError, match="not part of shardmill"):
        from_plain({"kind": "shardmill.running.engine:Job"})


@pytest.mark.parametrize("method", ["evil:Thing,x=1", 'window,window={"kind":"evil:Thing"}'])
def test_a_plan_names_no_packer_of_its_own(hostile: Path, tmp_path: Path, method: str) -> None:
    made = make_packed(tmp_path)
    plan = open_plan(made.plan_path)
    write_plan(made.plan_path, replace(plan, spec=replace(plan.spec, method=method)))
    lengths = str(made.lengths_path)
    refused(lambda: EpochPlans(made.plan_path, lengths, "plans").order(0, 1))
    words = ["why", str(made.plan_path), "--step", "0"]
    assert CliRunner().invoke(cli, words).exit_code == 0  # nothing is planned, so nothing is loaded
    told = CliRunner().invoke(cli, [*words, "--epoch", "1", "--epoch-plans", lengths])
    assert isinstance(told.exception, ShardmillError) and "--trust" in str(told.exception)


@pytest.mark.parametrize("args", [["check", "export", "--same", "export"], ["show", "export"]])
def test_a_folder_names_no_format_of_its_own(hostile: Path, args: list[str]) -> None:
    made = make_packed(hostile.parent)
    sm.export(made.tokens, "export", format="hf", workers=0)
    for name in ("stage.json", "manifest.json"):
        page = Path("export") / name
        page.write_text(re.sub(r'"kind": "format/\w+"', '"kind": "evil:Thing"', page.read_text()))
    told = CliRunner().invoke(cli, args)
    assert "evil" not in sys.modules and not (hostile.parent / "loaded").exists()
    assert "evil:Thing" in str(told.exception) and "--trust" in str(told.exception)


def test_repair_runs_no_stage_that_only_the_folder_names(hostile: Path) -> None:
    sm.ingest("rows.jsonl", "out", workers=0)
    page = Path("out/stage.json")
    page.write_text(
        page.read_text().replace('"filters": []', '"filters": [{"kind": "evil:Thing"}]')
    )
    next(Path("out/shards").glob("*.tar")).write_bytes(b"")
    refused(lambda: sm.check("out", repair=True, workers=0))


def test_what_the_user_trusts_is_loaded(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    plain = {"kind": "own_two:All"}
    (hostile / "own_two.py").write_text(OWN)
    with pytest.raises(ShardmillError, match="--trust"):
        from_plain(plain)
    sm.trust("own_two:All")
    assert type(from_plain(plain)).__name__ == "All"
    with pytest.raises(ShardmillError, match="not of the form"):
        sm.trust("own_two")
