"""Brings to the site what lies outside of docs/: the README as its first page, the tables of the
benchmarks, the examples, and what every command says of itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

from shardmill.cli.main import VERBS, cli

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")
HTML_LINK = re.compile(r'(<img[^>]* src=")([^":]+)(")')
# Where a file of the repository stands on the site; what is in docs/ keeps its place.
PLACES = {
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "benchmarks/results": "benchmarks/index.md",
    "demo/data": "demo-data.md",
    "demo/data/SOURCES.md": "demo-data.md",
    "src/shardmill/plugins.py": "python.md",
}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are made here."""
    for place, text in _made_pages():
        files.append(File.generated(config, place, content=text))
    return files


def _made_pages() -> Iterator[tuple[str, str]]:
    for name in ("README.md", "benchmarks/README.md", "demo/data/SOURCES.md"):
        yield PLACES[name], _moved((ROOT / name).read_text("utf-8"), name)
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        yield name, _moved(path.read_text("utf-8"), name)
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield f"examples/{path.stem}.md", _code_page(path)
    yield "examples/index.md", _examples_page()
    yield "commands.md", _commands_page()


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let links that lead out of docs/ lead to where that file stands on the site."""
    if page.file.generated_by:
        return markdown
    return _moved(markdown, f"docs/{page.file.src_uri}")


def _moved(text: str, name: str) -> str:
    """Return the text of a file of the repository with links as they are on the site."""
    here = _place(name)

    def link(match: re.Match[str]) -> str:
        return f"]({_link(name, here, match[1])}{match[2] or ''})"

    def source(match: re.Match[str]) -> str:
        return f"{match[1]}{_link(name, here, match[2])}{match[3]}"

    return HTML_LINK.sub(source, LINK.sub(link, text))


def _link(name: str, here: str, target: str) -> str:
    goal = Path("/", Path(name).parent, target).resolve().relative_to("/").as_posix()
    place = _place(goal)
    up = "../" * here.count("/")
    return f"{up}{place}" if place else target


def _place(name: str) -> str:
    if name in PLACES:
        return PLACES[name]
    if name.startswith("examples/") and name.endswith(".py"):
        return name.removesuffix(".py") + ".md"
    return name.removeprefix("docs/")


def _code_page(path: Path) -> str:
    return f"# {path.name}\n\n```python\n{path.read_text('utf-8')}```\n"


def _examples_page() -> str:
    paths = sorted((ROOT / "examples").glob("*.py"))
    lines = [f"- [{path.name}]({path.stem}.md): {_summary(path)}" for path in paths]
    return "# Examples\n\nEach is run by the tests, killed, and resumed.\n\n" + "\n".join(lines)


def _summary(path: Path) -> str:
    return path.read_text("utf-8").split('"""')[1].strip().splitlines()[0]


def _commands_page() -> str:
    parts = ["# Commands\n\nWhat `shardmill VERB --help` prints.\n"]
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        # Not a bare Context, which would not know the defaults that the command was made with.
        context = command.make_context(
            f"shardmill {verb}", [], resilient_parsing=True, max_content_width=88
        )
        text = click.unstyle(command.get_help(context))
        parts.append(f"## {verb}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)
