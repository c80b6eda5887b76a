"""Every command in the documentation runs as written.

A page is a script: in an empty folder that holds only `demo/`, its fenced blocks are taken from top
to bottom. A block whose first line is a comment with a file name (`# tokens.toml`) becomes that
file; every other `bash` block is run, and must succeed; other `python` blocks are run too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
RUN = ROOT / "tests" / "support" / "run_example.py"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"^(?:#|//) ?([\w./-]+\.\w+)\n")
NOT_RUN = ("make ", "pip install")
# Scripts of other projects that pages name.
FOREIGN = {"index/main.py", "tokenize/main.py"}


def run_block(language: str, text: str, folder: Path) -> None:
    named = FILE_NAME.match(text)
    if named:
        (folder / named[1]).parent.mkdir(parents=True, exist_ok=True)
        (folder / named[1]).write_text(text[named.end() :], encoding="utf-8")
        return
    if language == "bash":
        lines = [line for line in text.splitlines() if not line.startswith(NOT_RUN)]
        command = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
    elif language == "python":
        command = [sys.executable, "-c", text]
        if "from transformers import" in text:
            # Under a CPU build of torchvision, which lacks operators that transformers asks for.
            (folder / "block.py").write_text(text, encoding="utf-8")
            command = [sys.executable, str(RUN), "block.py"]
    else:
        return
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": search, "PYTHONPATH": str(folder)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of some 300 commands compiles all modules
    run = subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{text}\n{run.stdout}\n{run.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs_as_written(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if page.name == "stores.md":
        request.getfixturevalue("store_env")
    shutil.copytree(ROOT / "demo" / "data", tmp_path / "demo" / "data")
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        run_block(language, text, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} points to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|c))`", page.read_text("utf-8")):
        if name in FOREIGN:
            continue
        places = (ROOT / name, ROOT / "src" / "shardmill" / name)
        assert any(path.exists() for path in places), f"{page.name} names {name}"
