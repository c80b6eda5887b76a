"""`shardmill doctor`: findings that are true, all printed; what is wrong decides the exit code."""

from __future__ import annotations

import json
import resource
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardmill.cli import doctor as module
from shardmill.cli.doctor import Finding, doctor, examine

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
    assert "1 thing to fix" in output


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


def found(folder: Path) -> dict[tuple[str, str], Finding]:
    return {(finding.section, finding.name): finding for finding in examine(folder)}


def test_extras_are_those_of_the_package(tmp_path: Path) -> None:
    findings = found(tmp_path)
    assert findings[("extras", "image")].state == "good"
    assert "pillow" in findings[("extras", "image")].found
    assert ("extras", "all") not in findings


def test_compiled_modules_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    built = [one["name"] for one in project["tool"]["setuptools"]["ext-modules"]]
    assert [f"shardmill.{name}" for name in module.COMPILED] == built


@pytest.mark.parametrize("problem", [None, RuntimeError("operator torchvision::nms is missing")])
def test_a_torchvision_that_does_not_load_is_noticed(
    monkeypatch: pytest.MonkeyPatch, problem: Exception | None
) -> None:
    def load(name: str) -> object:
        if problem is not None and name == "torchvision":
            raise problem
        return object()

    monkeypatch.setattr(module, "import_module", load)
    monkeypatch.setattr(module, "installed", lambda name: "1.0")
    finding = {finding.name: finding for finding in module._processors()}["torchvision"]
    assert (finding.state == "good") == (problem is None)
    assert ("built with torch 1.0" in finding.todo) == (problem is not None)


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.installed
    monkeypatch.setattr(module, "installed", lambda name: None if name == "lmdb" else real(name))
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


def test_a_package_below_its_floor_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.installed
    monkeypatch.setattr(module, "installed", lambda name: "0.9" if name == "lmdb" else real(name))
    finding = found(tmp_path)[("extras", "lmdb")]
    assert finding.state == "bad" and "lmdb 0.9, older than 1.4" in finding.found
