"""Disks that behave as shared ones sometimes do: the bytes are those of a calm run, or none."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from drivers import snapshot
from faulty_disk import calm, can_mount, faulty_disk
from stages_for_tests import Lines

from shardmill.errors import ShardmillError
from shardmill.model.codec import to_plain
from shardmill.running.engine import Job
from shardmill.running.lock import FolderLock, LockTiming, new_token, read_owner
from shardmill.running.runner import remove_dead_drafts, run_stage
from shardmill.running.status import read_status
from shardmill.running.task import run_task
from shardmill.shards.ledger import Ledger
from shardmill.storage.files import DISK, LocalBackend

STAGE = Lines(num_units=12)
QUICK = LockTiming(beat_s=0.1, stale_s=1.0)
needs_fuse = pytest.mark.skipif(not can_mount(), reason="no FUSE file system can be mounted here")


@pytest.fixture
def calm_bytes(tmp_path: Path) -> dict[str, bytes]:
    run_stage(STAGE, tmp_path / "calm", workers=0)
    return snapshot(tmp_path / "calm")


@needs_fuse
@pytest.mark.parametrize("faults", [{"no_dir_sync": 1}, {"stale_s": 0.5}], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_disk_may_lack_needs_no_second_run(
    tmp_path: Path, calm_bytes: dict[str, bytes], faults: dict[str, float], workers: int
) -> None:
    with faulty_disk(tmp_path, **faults) as disk:
        assert run_stage(STAGE, disk / "out", workers=workers, timing=QUICK).complete
        assert calm(disk).total()
        assert snapshot(disk / "out") == calm_bytes


@needs_fuse
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("faults", [{"eio": 0.01}, {"lost_reply": 0.03}], ids=str)
def test_faults_cost_repeats_and_nothing_else(
    tmp_path: Path, calm_bytes: dict[str, bytes], faults: dict[str, float], seed: int
) -> None:
    with faulty_disk(tmp_path, seed=seed, **faults) as disk:
        out, is_complete = disk / "out", False
        for _ in range(40):
            # An error of ours, which says what to do; never one of the system as it came.
            with suppress(ShardmillError):
                is_complete = run_stage(STAGE, out, workers=0, timing=QUICK).complete
            if is_complete:
                break
        assert is_complete
        assert calm(disk).total()
        run_stage(STAGE, out, workers=0, timing=QUICK)
        assert snapshot(out) == calm_bytes
        assert read_status(out).num_failed == 0


@needs_fuse
def test_parts_whose_listings_lack_each_other_end_with_a_manifest(
    tmp_path: Path, calm_bytes: dict[str, bytes]
) -> None:
    with faulty_disk(tmp_path, stale_s=3600) as disk:
        first, last = (
            run_stage(STAGE, disk / "out", workers=0, part=(n, 2), timing=QUICK) for n in (1, 2)
        )
        assert not first.complete and last.complete
        assert snapshot(disk / "out").keys() < calm_bytes.keys()  # as it is listed
        calm(disk)
        assert snapshot(disk / "out") == calm_bytes


@needs_fuse
def test_tasks_whose_listings_are_old_share_the_units_and_complete_the_folder(
    tmp_path: Path, calm_bytes: dict[str, bytes]
) -> None:
    with faulty_disk(tmp_path, stale_s=3600) as disk:
        out = disk / "out"
        run_stage(STAGE, out, workers=0, part=(1, 12), timing=QUICK)
        job = Job(stage=to_plain(STAGE), out_dir=str(out), token="", retries=0, max_skip_rate=0.0)
        assert run_task(job, workers=1, timing=QUICK).run.complete
        calm(disk)
        run_stage(STAGE, out, workers=0, timing=QUICK)
        assert snapshot(out) == calm_bytes


@needs_fuse
def test_drafts_of_a_run_whose_lock_is_not_listed_stay(tmp_path: Path) -> None:
    with faulty_disk(tmp_path, stale_s=3600) as disk:
        mine, other, dead = (Ledger(disk / "out", new_token(f"part-{n}-of-3")) for n in (1, 2, 3))
        mine.make_folders()
        with FolderLock(disk / "out" / "locks", "part-2-of-3", other.token, timing=QUICK):
            for ledger in (mine, other, dead):
                ledger.make_drafts()
            remove_dead_drafts(mine)
            assert other.draft_dir.exists()
        calm(disk)
        remove_dead_drafts(mine)
        assert not other.draft_dir.exists() and not dead.draft_dir.exists()


def _then_missing(function: Callable[..., object], error: type[OSError]) -> Callable[..., None]:
    def do_and_deny(*args: object) -> None:
        function(*args)
        raise error(2, "as a server says whose first reply was lost")

    return do_and_deny


def test_a_lost_reply_to_a_lock_or_a_rename_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, path = LocalBackend(tmp_path), tmp_path / "lock"
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", _then_missing(os.link, FileExistsError))
        patch.setattr(os, "rename", _then_missing(os.rename, FileNotFoundError))
        assert backend.create(path, b"mine")
        assert not backend.create(path, b"other")
        (tmp_path / "draft").write_bytes(b"data")
        DISK.rename(tmp_path / "draft", tmp_path / "file")
    assert path.read_bytes() == b"mine"
    with pytest.raises(FileNotFoundError):
        DISK.rename(tmp_path / "draft", tmp_path / "file")


def test_a_lock_is_exclusive_where_files_have_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    with FolderLock(tmp_path, "part-1-of-1", "me"):
        assert not LocalBackend(tmp_path).create(tmp_path / "part-1-of-1.json", b"other")
        assert read_owner(tmp_path / "part-1-of-1.json") is not None
    assert list(tmp_path.iterdir()) == []
