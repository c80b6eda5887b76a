"""The site builds without a warning, and needs nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]* src=["']?(https?:|//)|@import""")
STYLES = re.compile(r"""<link[^>]*rel=["']?stylesheet[^>]*href=["']?(https?:|//)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    return folder


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text("utf-8")
        assert not LOADED.search(text), page
        assert not STYLES.search(text), page


def test_every_verb_and_every_table_of_the_benchmarks_is_on_it(site: Path) -> None:
    from shardmill.cli.main import VERBS

    commands = (site / "commands.html").read_text("utf-8")
    assert all(f'id="{verb}"' in commands for verb in VERBS)
    for table in (ROOT / "benchmarks" / "results").glob("*.md"):
        assert (site / "benchmarks" / "results" / f"{table.stem}.html").exists()
