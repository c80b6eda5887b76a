"""`import shardmill as sm`: light, lazy, typed, and all that a user needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import shardmill as sm

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


def test_verbs_stay_verbs_when_the_packages_of_their_names_are_loaded() -> None:
    code = """
import shardmill.pack.plan, shardmill.run.runner
import shardmill as sm
from shardmill.pack.plan import plan_packs
print(sm.pack.__name__, callable(sm.pack), callable(sm.run), plan_packs.__name__)
"""
    assert run_python(code).split() == ["pack", "True", "True", "plan_packs"]


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
