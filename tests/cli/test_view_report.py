"""`shardmill report`: one file, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from view_folders import make_hostile

from shardmill.cli.view import report


def test_a_report_is_written(tmp_path: Path) -> None:
    folder = make_hostile(tmp_path / "in")
    out = tmp_path / "report.html"
    result = CliRunner().invoke(report, [str(folder), "-o", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"path": str(out), "num_bytes": out.stat().st_size}
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()].count("report.html") == 1
    assert not list(tmp_path.glob(".report*"))


def test_an_empty_folder_has_an_empty_report(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = CliRunner().invoke(report, [str(tmp_path), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "complete in itself" in result.output
