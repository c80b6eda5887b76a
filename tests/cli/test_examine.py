"""Each finding tells the truth about this machine."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from shardmill.cli import examine as module
from shardmill.cli.examine import Finding, examine


def found(folder: Path) -> dict[tuple[str, str], Finding]:
    return {(finding.section, finding.name): finding for finding in examine(folder)}


def test_extras_are_those_of_the_package(tmp_path: Path) -> None:
    findings = found(tmp_path)
    assert findings[("extras", "image")].state == "good"
    assert "pillow" in findings[("extras", "image")].found
    assert ("extras", "all") not in findings


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._version
    monkeypatch.setattr(module, "_version", lambda name: None if name == "lmdb" else real(name))
    finding = found(tmp_path)[("extras", "lmdb")]
    assert finding.state == "missing"
    assert finding.todo == "pip install 'shardmill[lmdb]'"
    assert "LMDB" in finding.found


def test_a_full_disk_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_FREE_BYTES", 1e30)
    finding = found(tmp_path)[("disks", "data")]
    assert finding.state == "bad" and "make room" in finding.todo


def test_few_open_files_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_OPEN_FILES", resource.RLIM_INFINITY + (1 << 62))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        assert found(tmp_path)[("limits", "open files")].todo.startswith("ulimit -n")
