"""Shards are copied once a node, whole or not at all, and go with their last user."""

from __future__ import annotations

import multiprocessing
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from packed_folder import Made

from shardmill.errors import ConfigError, FormatError
from shardmill.shards.ledger import open_manifest
from shardmill.train import staging
from shardmill.train.staging import stage


def test_a_staged_folder_is_the_same_and_goes_with_its_last_user(
    made: Made, tmp_path: Path
) -> None:
    near = tmp_path / "near"
    first, second = stage(made.tokens, near), stage(made.tokens, near)
    assert open_manifest(near) == open_manifest(made.tokens)
    for entry in open_manifest(near).shards:
        for file in entry.files.values():
            assert (near / file.path).read_bytes() == (made.tokens / file.path).read_bytes()
    first.remove()
    assert near.exists()
    with second:
        assert second.folder == near
    assert not near.exists()


def test_processes_of_a_node_copy_each_file_once(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[Path] = []
    copy = staging._copy
    monkeypatch.setattr(staging, "_copy", lambda s, d, stop: copied.append(s) or copy(s, d))
    with ThreadPoolExecutor(6) as pool:
        used = list(pool.map(lambda _: stage(made.tokens, tmp_path / "near"), range(6)))
    assert len(copied) == len(set(copied)) == 3 * 8
    for one in used:
        one.remove()
    assert not (tmp_path / "near").exists()


def _die_while_staging(source: Path, near: Path) -> None:
    def die(_source: Path, draft: Path, _stop: object) -> str:
        draft.write_bytes(b"half")
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    staging._copy = die  # type: ignore[assignment]
    stage(source, near)


def test_what_a_killed_process_left_is_no_obstacle(made: Made, tmp_path: Path) -> None:
    near = tmp_path / "near"
    process = multiprocessing.get_context("fork").Process(
        target=_die_while_staging, args=(made.tokens, near)
    )
    process.start()
    process.join()
    assert process.exitcode == -9
    assert not (near / "manifest.json").exists()
    with stage(made.tokens, near):
        assert open_manifest(near) == open_manifest(made.tokens)
    assert not near.exists()


def test_limits_and_broken_shards_are_told(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"staging may use 1,000"):
        stage(made.tokens, tmp_path / "near", max_bytes=1000)
    broken = tmp_path / "broken"
    shutil.copytree(made.tokens, broken)
    path = broken / "shards" / "00002.bin"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(FormatError, match=r"00002.bin.*checksum"):
        stage(broken, tmp_path / "near2")
    assert not (tmp_path / "near2" / "manifest.json").exists()
    assert not (tmp_path / "near2" / "shards" / "00002.bin").exists()


def test_a_copy_that_failed_has_no_user_left(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_source: Path, _draft: Path, _stop: object) -> str:
        raise KeyboardInterrupt

    near = tmp_path / "near"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(staging, "_copy", interrupt)
        stage(made.tokens, near)
    stage(made.tokens, near).remove()
    assert not near.exists()
