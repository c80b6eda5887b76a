"""What `status` tells of a folder that is complete, in the making, failed or broken."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from drivers import signal_quietly, start_driver
from stages_for_tests import Lines, Unruly

from shardmill.errors import ShardmillError
from shardmill.running.runner import run_stage
from shardmill.running.status import read_status


def test_a_complete_folder(tmp_path: Path) -> None:
    report = run_stage(Lines(), tmp_path / "out", workers=0)
    status = read_status(tmp_path / "out")
    assert status.complete and status.stage_kind == "stages_for_tests:Lines"
    assert (status.num_units, status.num_done, status.num_pending) == (12, 12, 0)
    assert (status.num_in, status.num_kept) == (report.num_in, report.num_kept)
    assert status.num_shards == 12 and status.num_bytes == report.num_bytes
    assert status.stats == {"lines": report.num_kept}
    assert sum(status.skipped.values()) == report.num_in - report.num_kept
    examples = status.examples["seventh"]
    assert len(examples) == 3 and examples[0].key == "00000-0" and examples[0].detail == "row 0"
    assert len(status.slow_units) == 5
    assert status.seconds_left is status.samples_per_s is None
    assert status.locks == status.running == status.failures == ()


def test_a_list_of_rejects_that_went_away_or_says_more_is_no_trouble(tmp_path: Path) -> None:
    run_stage(Lines(), tmp_path / "out", workers=0)
    lists = tmp_path / "out" / "rejects"
    for path in lists.iterdir():
        path.unlink()
    (lists / "00000.jsonl").symlink_to("gone.jsonl")
    (lists / "00001.jsonl").write_text(
        '{"key": "a", "reason": "seventh", "detail": "", "filtered": false, "later": 1}\n'
    )
    assert [reject.key for reject in read_status(tmp_path / "out").examples["seventh"]] == ["a"]


def test_a_folder_in_part_has_the_same_books_as_its_receipts(tmp_path: Path) -> None:
    report = run_stage(Lines(), tmp_path / "out", workers=0, part=(2, 3))
    status = read_status(tmp_path / "out")
    assert not status.complete and (status.num_units, status.num_done) == (12, 4)
    assert (status.num_in, status.num_bytes) == (report.num_in, report.num_bytes)


def test_failures_have_a_message_and_a_tail(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    stage = Unruly(notes=tmp_path / "notes", deeds={"00001": "raise", "00003": "segfault"})
    run_stage(stage, tmp_path / "out", workers=2, retries=0)
    status = read_status(tmp_path / "out")
    assert status.num_failed == 2 and status.num_done == 4
    first, second = status.failures
    assert first.unit == "00001" and first.message == "ValueError: a bug in the stage"
    assert first.tail.splitlines()[-1] == "ValueError: a bug in the stage"
    assert "SIGSEGV" in second.message and "stages_for_tests.py" in second.tail


def test_a_broken_receipt_does_not_count(tmp_path: Path) -> None:
    run_stage(Lines(), tmp_path / "out", workers=0, part=(1, 2))
    (tmp_path / "out/receipts/00000.json").write_text("{")
    assert read_status(tmp_path / "out").num_done == 5


def test_a_run_in_progress_shows_who_what_and_how_fast(tmp_path: Path) -> None:
    out = tmp_path / "out"
    driver = start_driver(Lines(num_units=400, sleep_s=0.1), out, workers=2)
    try:
        deadline = time.monotonic() + 60
        while len(list(out.glob("receipts/*"))) < 8:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        status = read_status(out)
        assert not status.complete and status.num_done >= 8
        assert [lock.owner.pid for lock in status.locks if lock.alive] == [driver.pid]
        assert status.running and status.running[0].pid != driver.pid
        assert status.samples_per_s and status.bytes_per_s and status.seconds_left
    finally:
        signal_quietly(-driver.pid, signal.SIGKILL)
        driver.communicate()
    dead = read_status(out)
    assert [lock.alive for lock in dead.locks] == [False]
    assert dead.running == () and dead.seconds_left is None


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError, match=r"no stage\.json"):
        read_status(tmp_path)


def test_a_unit_that_is_done_has_not_failed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_stage(Lines(), out, workers=0, part=(1, 2))
    for name in ("00000", "00011"):  # the one is done, and a kill left what an earlier try said
        (out / "failures" / f"{name}.json").write_text(f'{{"unit": "{name}", "message": "no"}}')
    assert [failure.unit for failure in read_status(out).failures] == ["00011"]
    run_stage(Lines(), out, workers=0)
    assert read_status(out).failures == () and list((out / "failures").iterdir()) == []
