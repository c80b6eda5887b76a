"""`shardmill doctor`: every finding is printed, and what is wrong decides the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardmill.cli import doctor as module
from shardmill.cli.doctor import Finding, doctor

GOOD = Finding("versions", "shardmill", "good", "1.0")
MISSING = Finding("extras", "video", "missing", "no av", "pip install 'shardmill[video]'")
BAD = Finding("disks", "/data", "bad", "1 MB free", "make room")


def run(monkeypatch: pytest.MonkeyPatch, findings: list[Finding], *words: str) -> tuple[int, str]:
    monkeypatch.setattr(module, "examine", lambda folder: iter(findings))
    result = CliRunner().invoke(doctor, list(words))
    return result.exit_code, result.output


def test_what_is_missing_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, [GOOD, MISSING])
    assert code == 0
    assert "ready; 1 optional missing" in output
    assert "pip install 'shardmill[video]'" in output
    assert "\x1b[" not in output


def test_what_is_wrong_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, [GOOD, MISSING, BAD])
    assert code == 1
    assert "1 thing to mend" in output


def test_machines_get_json(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, [GOOD, BAD], "--json")
    told = json.loads(output)
    assert code == 1 and told["good"] is False
    assert [finding["name"] for finding in told["findings"]] == ["shardmill", "/data"]


def test_the_real_machine_can_be_examined(tmp_path: Path) -> None:
    result = CliRunner().invoke(doctor, [str(tmp_path), "--json"])
    assert result.exit_code in (0, 1), result.output
    sections = {finding["section"] for finding in json.loads(result.stdout)["findings"]}
    assert sections == {"versions", "extras", "GPU", "codecs", "programs", "disks", "limits"}
