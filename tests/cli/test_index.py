"""`shardmill index` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from tars import tar_bytes

from shardmill.cli.verbs import index


def test_tars_get_an_index_and_the_lists_of_others(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.tar").write_bytes(tar_bytes([(f"{name}.txt", b"hello")]))
    arguments = [f"{tmp_path}/{{a,b}}.tar", str(tmp_path / "out"), "--workers", "0", "--json"]
    for done_now in (2, 0):
        ran = CliRunner().invoke(index, arguments, catch_exceptions=False)
        assert ran.exit_code == 0
        assert json.loads(ran.stdout)["run"]["num_done"] == done_now
    described = json.loads((tmp_path / "out" / "shardindex.json").read_text())
    assert described["name"] == "out"
    assert [shard["nsamples"] for shard in described["shardlist"]] == [1, 1]
    assert json.loads((tmp_path / "out" / "shardlist.json").read_text())[0]["nsamples"] == 1
    assert (tmp_path / "out" / "shardlist.pkl").exists()


def test_md5_sums_are_added_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_bytes([("a.txt", b"hello")]))
    arguments = [str(tmp_path / "a.tar"), str(tmp_path / "out"), "--workers", "0"]
    for more in ([], ["--md5", "--name", "mine"]):
        ran = CliRunner().invoke(index, [*arguments, *more], catch_exceptions=False)
        assert ran.exit_code == 0
    described = json.loads((tmp_path / "out" / "shardindex.json").read_text())
    assert described["name"] == "mine"
    assert len(described["shardlist"][0]["md5sum"]) == 32


def test_a_damaged_tar_is_an_exit_code_and_a_message(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"not a tar" * 100)
    arguments = [str(tmp_path / "a.tar"), str(tmp_path / "out"), "--workers", "0"]
    ran = CliRunner().invoke(index, arguments, catch_exceptions=False)
    assert ran.exit_code == 1
    assert "a.tar" in ran.output
    assert not (tmp_path / "out" / "shardindex.json").exists()
