"""Jobs as files: the same command writes the same file; what does not fit here is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stages_for_tests import Lines

from shardmill.errors import ConfigError, FormatError
from shardmill.model.codec import from_plain, to_plain
from shardmill.running.engine import Job, job_path, read_job, write_job
from shardmill.storage.text import dump_line, parse_json


def make_job(tmp_path: Path, **fields: object) -> Job:
    given = {"stage": to_plain(Lines()), "out_dir": str(tmp_path), "token": "abc"}
    return Job(**{**given, "retries": 1, "max_skip_rate": 0.1, **fields})  # type: ignore[arg-type]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    found = read_job(write_job(job))
    assert found == job.for_run("") and found.load_stage() == Lines()


def test_the_name_depends_on_the_job_and_not_on_the_run(tmp_path: Path) -> None:
    path = job_path(make_job(tmp_path))
    assert path == job_path(make_job(tmp_path, token="other")) and not path.exists()
    assert path != job_path(make_job(tmp_path, retries=2))
    assert path != job_path(make_job(tmp_path, stage=to_plain(Lines(salt="x"))))


def test_no_environment_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    assert "hunter2" not in write_job(make_job(tmp_path)).read_text()


def change(path: Path, **fields: object) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return path


def test_a_job_of_another_format_is_refused_by_version(tmp_path: Path) -> None:
    path = change(write_job(make_job(tmp_path)), format=2, shardmill="9.1")
    with pytest.raises(ConfigError, match=r"job of shardmill 9\.1 in format 2.*run the command"):
        read_job(path)


def test_a_stage_that_has_another_version_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_job(make_job(tmp_path))
    monkeypatch.setattr(Lines, "version", 2)
    with pytest.raises(ConfigError, match=r"another version of Lines.*on every machine"):
        read_job(path)


def test_a_stage_that_is_not_installed_here_is_named(tmp_path: Path) -> None:
    path = write_job(make_job(tmp_path))
    job = json.loads(path.read_text())["job"]
    change(path, job=job | {"stage": {"kind": "their.plugin:Stage"}})
    with pytest.raises(ConfigError, match=r"their\.plugin:Stage"):
        read_job(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff" * 9, b'{"format": 1}'])
def test_what_is_no_job_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"x\.json: is not a job"):
        read_job(tmp_path / "x.json")


def test_a_job_that_is_not_there_asks_for_a_shared_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shared with this machine"):
        read_job(tmp_path / "gone.json")


def test_a_job_travels_as_json() -> None:
    stage = Lines(num_units=3, salt="ü\udcff")
    job = Job(stage=to_plain(stage), out_dir="/x", token="t", retries=1, max_skip_rate=0.5)
    again = from_plain(parse_json(dump_line(to_plain(job))), Job)
    assert again == job
    assert again.load_stage() == stage
