"""Every benchmark can be imported, finds what it imports from shardmill, and is in the list.

They take too long to run here; `python benchmarks/NAME.py --quick` runs one on little data.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
# Modules that programs share.
SHARED = {"fetch_tokenizers", "made_data", "packers", "peers", "side_by_side"}
PROGRAMS = sorted(path for path in FOLDER.glob("*.py") if path.stem not in SHARED)
# What users and plugins may import: the front door, the drop-in for NeMo, and stages of one's own.
PUBLIC = {
    "shardmill",
    "shardmill.neat_packing",
    "shardmill.model.stage",
    "shardmill.running.runner",
}


def imports(path: Path) -> list[tuple[str, str | None]]:
    """Return each (module, name) that a file imports from shardmill, inside functions, too."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardmill"):
            found += [(str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(a.name, None) for a in node.names if a.name.startswith("shardmill")]
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_what_it_imports_exists(path: Path) -> None:
    for module, name in imports(path):
        loaded = importlib.import_module(module)
        assert name is None or hasattr(loaded, name), f"{module} has no {name}"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_internal_modules_are_imported_only_if_the_docstring_says_so(path: Path) -> None:
    internal = {module for module, _ in imports(path)} - PUBLIC
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    assert not internal or "internal" in text, sorted(internal)


def test_all_programs_load() -> None:
    names = [path.stem for path in PROGRAMS if path.stem != "engines"]  # which needs ray
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import {', '.join(names)}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_list_has_every_program_and_every_table() -> None:
    listed = (FOLDER / "README.md").read_text("utf-8")
    for path in PROGRAMS:
        assert f"`{path.name}`" in listed, path.name
        assert "sized(" in path.read_text("utf-8") or "QUICK" in path.read_text("utf-8")
    for table in (FOLDER / "results").glob("*.md"):
        assert f"results/{table.name}" in listed, table.name
        assert table.with_suffix(".py").name in listed, table.name
