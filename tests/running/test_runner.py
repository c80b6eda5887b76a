"""Running again resumes, finished is a no-op, changed is refused; disks fill up, drivers race."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from drivers import signal_quietly, snapshot, start_driver
from hypothesis import given
from hypothesis import strategies as st
from other_tasks import write_lock
from stages_for_tests import Lines, Noise, Nothing, Unruly

from shardmill.errors import ConfigError, LockedError, ShardmillError, StaleError
from shardmill.model.stage import Unit
from shardmill.running.events import Event, read_log
from shardmill.running.lock import LockTiming, this_process
from shardmill.running.runner import (
    StopSignals,
    UnitTimes,
    explain_refusals,
    open_session,
    remove_dead_drafts,
    run_stage,
    spread,
    tidy,
    try_units,
)
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.stages.check.folder import check_folder


def unruly(tmp_path: Path, **deeds: str) -> Unruly:
    notes = tmp_path / "notes"
    notes.mkdir(exist_ok=True)
    return Unruly(notes=notes, deeds={name.lstrip("u"): deed for name, deed in deeds.items()})


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_number_of_workers_does_not_show(tmp_path: Path, workers: int) -> None:
    run_stage(Lines(), tmp_path / "inline", workers=0)
    report = run_stage(Lines(), tmp_path / "out", workers=workers)
    assert report.complete and report.num_done == 12
    assert report.num_in == 60 and report.num_in > report.num_kept > 0
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "inline")
    assert list((tmp_path / "out" / ".draft").iterdir()) == []


def test_running_again_does_only_what_is_missing(tmp_path: Path) -> None:
    stage = unruly(tmp_path, u00002="raise once")
    first = run_stage(stage, tmp_path / "out", workers=0, retries=0)
    assert [unit for unit, _ in first.failures] == ["00002"]
    assert "ValueError: a bug in the stage" in first.failures[0][1]
    second = run_stage(stage, tmp_path / "out", workers=0)
    assert second.complete and (second.num_done, second.num_done_before) == (1, 5)


def test_a_finished_folder_is_left_alone(tmp_path: Path) -> None:
    run_stage(Lines(), tmp_path / "out", workers=0)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    report = run_stage(Lines(), tmp_path / "out", workers=0)
    assert report.complete and report.num_done == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_claims_that_outlived_their_folder_are_removed(tmp_path: Path) -> None:
    run_stage(Lines(), tmp_path / "out", workers=0)
    before = snapshot(tmp_path / "out")
    (tmp_path / "out" / "claims").mkdir()
    (tmp_path / "out" / "claims" / "00000.1").write_text("0" * 16)
    assert run_stage(Lines(), tmp_path / "out", workers=0).complete
    assert snapshot(tmp_path / "out") == before and not (tmp_path / "out" / "claims").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\0" * 99])
def test_a_manifest_that_cannot_be_read_is_made_again(tmp_path: Path, content: bytes) -> None:
    run_stage(Lines(), tmp_path / "out", workers=0)
    before = snapshot(tmp_path / "out")
    (tmp_path / "out" / "manifest.json").write_bytes(content)
    report = run_stage(Lines(), tmp_path / "out", workers=0)
    assert report.complete and report.num_done == 0
    assert snapshot(tmp_path / "out") == before


def test_other_parameters_are_refused_by_name(tmp_path: Path) -> None:
    run_stage(Lines(), tmp_path / "out", workers=0)
    with pytest.raises(StaleError, match=r"salt: \"\" -> \"pepper\""):
        run_stage(Lines(salt="pepper"), tmp_path / "out", workers=0)


def test_another_version_of_the_stage_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stage(Lines(), tmp_path / "out", workers=0)
    monkeypatch.setattr(Lines, "version", 2)
    with pytest.raises(StaleError, match="version of the stage: 1 -> 2"):
        run_stage(Lines(), tmp_path / "out", workers=0)


@pytest.mark.parametrize("finished", [True, False])
def test_other_inputs_are_refused_by_name(tmp_path: Path, finished: bool) -> None:
    stage = unruly(tmp_path, **({} if finished else {"u00005": "raise"}))
    for name in ("input-kept", "input-changed", "input-removed"):
        (stage.notes / name).write_text("old")
    run_stage(stage, tmp_path / "out", workers=0)
    (stage.notes / "input-changed").write_text("other")
    (stage.notes / "input-removed").unlink()
    (stage.notes / "input-added").write_text("new")
    with pytest.raises(StaleError) as refusal:
        run_stage(stage, tmp_path / "out", workers=0)
    for line in ("changed: input-changed", "removed: input-removed", "added: input-added"):
        assert line in str(refusal.value)
    assert "input-kept" not in str(refusal.value)


def test_a_plan_from_which_nothing_was_made_gives_way(tmp_path: Path) -> None:
    stage = unruly(tmp_path, **{f"u{i:05d}": "raise once" for i in range(6)})
    (stage.notes / "input").write_text("with a mistake")
    assert len(run_stage(stage, tmp_path / "out", workers=0, retries=0).failures) == 6
    (stage.notes / "input").write_text("repaired")
    assert run_stage(stage, tmp_path / "out", workers=0).complete


def test_units_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = unruly(tmp_path, u00002="raise once")
    run_stage(stage, tmp_path / "out", workers=0, retries=0)
    monkeypatch.setattr(Unruly, "units", lambda self: pytest.fail("listed again"))
    assert run_stage(stage, tmp_path / "out", workers=0).complete


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        run_stage(Lines(), tmp_path, workers=0)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ConfigError, match="is a file"):
        run_stage(Lines(), tmp_path / "thesis.tex", workers=0)


def test_samples_that_vanish_fail_their_unit(tmp_path: Path) -> None:
    report = run_stage(unruly(tmp_path, u00001="lose"), tmp_path / "out", workers=0)
    assert "counts do not balance" in dict(report.failures)["00001"]


def test_skips_beyond_the_budget_fail_the_unit(tmp_path: Path) -> None:
    stage = unruly(tmp_path, u00001="skip")
    report = run_stage(stage, tmp_path / "out", workers=0, max_skip_rate=0.0)
    assert "1 x broken sample" in dict(report.failures)["00001"]
    assert run_stage(stage, tmp_path / "out", workers=0, max_skip_rate=0.5).complete
    rejects = (tmp_path / "out" / "rejects" / "00001.jsonl").read_text()
    assert json.loads(rejects)["detail"] == "at byte 7"


def test_an_empty_input_gives_an_empty_dataset(tmp_path: Path) -> None:
    report = run_stage(Nothing(num_units=0), tmp_path / "out", workers=2)
    assert report.complete and open_manifest(tmp_path / "out").shards == ()


def test_options_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    for options in ({"workers": -1}, {"retries": -1}, {"max_skip_rate": 1.5}, {"part": (4, 3)}):
        with pytest.raises(ConfigError):
            run_stage(Lines(), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_parts_run_together_and_the_last_one_collects(tmp_path: Path) -> None:
    stage = Lines(num_units=20, sleep_s=0.05)
    run_stage(stage, tmp_path / "whole", workers=0)
    out = tmp_path / "out"
    drivers = [start_driver(stage, out, workers=1, part=(i, 3)) for i in (1, 2, 3)]
    ends = [driver.communicate() for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0, 0], ends
    assert sum(json.loads(printed)["done"] for printed, _ in ends) == 20
    assert snapshot(out) == snapshot(tmp_path / "whole")


def test_parts_of_one_split_make_up_the_whole(tmp_path: Path) -> None:
    run_stage(Lines(), tmp_path / "whole", workers=0)
    reports = [run_stage(Lines(), tmp_path / "out", workers=0, part=(i, 5)) for i in (3, 1, 5, 2)]
    assert not any(report.complete for report in reports)
    with pytest.raises(ShardmillError, match=r"\d of 12 units are missing"):
        open_manifest(tmp_path / "out")
    assert run_stage(Lines(), tmp_path / "out", workers=0, part=(4, 5)).complete
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "whole")


def test_two_drivers_refuse_each_other(tmp_path: Path) -> None:
    stage = Lines(num_units=200, sleep_s=0.1)
    first = start_driver(stage, tmp_path / "out", workers=1)
    wait_for_receipt(tmp_path / "out")
    for part in ((1, 1), (1, 2)):
        with pytest.raises(LockedError, match=f"process {first.pid} on .* last sign of life"):
            run_stage(stage, tmp_path / "out", workers=0, part=part)
    first.kill()
    first.communicate()


def wait_for_receipt(out: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(out.glob("receipts/*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_race_of_two_drivers_loses_nothing(tmp_path: Path) -> None:
    """Locks are taken away under both of them; both go on until they notice, and both commit."""
    stage = Lines(num_units=40, sleep_s=0.03)
    run_stage(stage, tmp_path / "calm", workers=0)
    out = tmp_path / "out"
    drivers = []
    for _ in range(3):
        drivers.append(start_driver(stage, out, workers=2, beat_s=0.5, stale_s=5))
        wait_for_receipt(out)
        for lock in (out / "locks").iterdir():
            lock.unlink(missing_ok=True)
    for driver in drivers:
        driver.communicate()
    run_stage(stage, out, workers=1)
    assert snapshot(out) == snapshot(tmp_path / "calm")


def test_a_run_that_was_suspended_and_taken_over_does_no_harm(tmp_path: Path) -> None:
    """It wakes up in the middle of its work; its drafts are gone, so it cannot commit a thing."""
    stage, out = Noise(num_units=30, sleep_s=0.02), tmp_path / "out"
    drivers = []
    for _ in range(3):
        driver = start_driver(stage, out, workers=2, beat_s=0.1, stale_s=0.5)
        drivers.append(driver)
        num_before = len(list(out.glob("receipts/*")))
        while driver.poll() is None and len(list(out.glob("receipts/*"))) < num_before + 4:
            time.sleep(0.001)
        signal_quietly(-driver.pid, signal.SIGSTOP)
        time.sleep(0.6)
    run_stage(stage, out, workers=2, timing=LockTiming(beat_s=0.1, stale_s=0.5))
    for driver in drivers:
        signal_quietly(-driver.pid, signal.SIGCONT)
    for driver in drivers:
        driver.communicate()
    assert check_folder(out).problems == ()
    assert run_stage(stage, out, workers=0).complete


def test_a_driver_whose_lock_was_taken_over_stops(tmp_path: Path) -> None:
    stage, out = Lines(num_units=300, sleep_s=0.1), tmp_path / "out"
    seen: list[Event] = []

    def steal(event: Event) -> None:
        seen.append(event)
        if event.kind == "done":
            path = out / "locks" / "part-1-of-1.json"
            lock = json.loads(path.read_text())
            path.write_text(json.dumps(lock | {"token": "somebody else"}))

    with pytest.raises(LockedError, match="took over"):
        run_stage(stage, out, workers=1, on_event=steal, timing=LockTiming(beat_s=0.1))
    assert sum(event.kind == "done" for event in seen) < 300


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small disk here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_disk_that_fills_up(small_disk: Path, workers: int) -> None:
    stage = Lines(num_units=60, num_samples=1000)  # about 55 kB a unit
    report = run_stage(stage, small_disk / "out", workers=workers)
    assert not report.complete and 0 < report.num_done < 20
    assert 1 <= len(report.failures) < 30
    assert "No space left on device" in report.failures[0][1]
    with pytest.raises(ShardmillError, match="not finished"):
        open_manifest(small_disk / "out")
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    assert run_stage(stage, small_disk / "out", workers=workers).complete
    run_stage(stage, small_disk.parent / "calm", workers=0)
    assert snapshot(small_disk / "out") == snapshot(small_disk.parent / "calm")


def test_a_limit_on_file_sizes_fails_units_by_name(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        report = run_stage(Lines(num_units=3, num_samples=1000), tmp_path / "out", workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [unit for unit, _ in report.failures] == ["00000", "00001", "00002"]
    assert "File too large" in report.failures[0][1]
    assert run_stage(Lines(num_units=3, num_samples=1000), tmp_path / "out", workers=1).complete


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    os.seteuid(65534)
    try:
        with pytest.raises(ShardmillError, match=r"cannot write to .*out: Permission denied"):
            run_stage(Lines(), tmp_path / "out", workers=0)
    finally:
        os.seteuid(0)


def test_a_full_disk_at_the_start_is_named(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(1 << 20))
    with pytest.raises(ShardmillError, match=r"cannot write to .*No space left"):
        run_stage(Lines(num_units=2000), small_disk / "out", workers=0)


def test_events_come_in_order(tmp_path: Path) -> None:
    events: list[Event] = []
    run_stage(Lines(num_units=3), tmp_path / "out", workers=1, on_event=events.append)
    kinds = [event.kind for event in events if event.kind != "tick"]
    assert kinds[0] == "plan" and kinds[-1] == "end"
    assert sorted(kinds[1:-1]) == ["done"] * 3 + ["start"] * 3


def test_it_runs_outside_the_main_thread(tmp_path: Path) -> None:
    reports = []
    thread = threading.Thread(
        target=lambda: reports.append(run_stage(Lines(), tmp_path / "out", workers=1))
    )
    thread.start()
    thread.join()
    assert reports[0].complete


def test_a_number_is_the_same_spec_here_and_in_a_worker(tmp_path: Path) -> None:
    """30 in a field of floats becomes 30.0 when a worker loads the spec."""
    stage = Lines(num_units=2, sleep_s=0 * 30)
    assert run_stage(stage, tmp_path / "out", workers=1).complete
    assert run_stage(Lines(num_units=2, sleep_s=0.0), tmp_path / "out", workers=0).num_done == 0


@given(st.integers(0, 50), st.integers(1, 60))
def test_tried_units_differ_and_are_spread_evenly(num_units: int, count: int) -> None:
    units = [Unit(name=str(n), input={}) for n in range(num_units)]
    places = [units.index(unit) for unit in spread(units, count)]
    assert len(places) == min(count, num_units)
    steps = {after - before for before, after in pairwise(places)}
    assert all(step >= 1 for step in steps)
    assert max(steps, default=0) - min(steps, default=0) <= 1


def test_a_trial_folder_holds_the_tried_units_and_is_complete(tmp_path: Path) -> None:
    stage = Lines(num_units=9)
    tried = try_units(stage, tmp_path / "out", num_units=3, workers=1, max_skip_rate=0.0)
    assert (tried.num_units, tried.num_tried) == (9, 3)
    ledger = Ledger(tmp_path / "out")
    assert [unit.name for unit in ledger.read_units()] == ["00001", "00004", "00007"]
    assert ledger.read_manifest() == tried.manifest


def test_first_unit_of_a_process_counts_only_if_it_is_its_last() -> None:
    times = UnitTimes()
    for pid, seconds in ((1, 9.0), (1, 1.0), (1, 3.0), (2, 5.0)):
        times(Event(kind="done", pid=pid, seconds=seconds, cpu_seconds=seconds / 2))
    assert times.mean() == (3.0, 1.5)
    assert UnitTimes().mean() == (0.0, 0.0)


def test_our_own_events_are_logged_and_those_of_others_only_told(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    heard: list[Event] = []
    with pytest.raises(ValueError, match="a bug"), open_session(ledger, [heard.append]) as tell:
        assert ledger.draft_dir.is_dir()
        tell(Event(kind="done", unit="mine"))
        tell.relay(Event(kind="done", unit="theirs"))
        raise ValueError("a bug")
    assert [event.unit for event in heard if event.kind == "done"] == ["mine", "theirs"]
    logged = [entry.event for entry in read_log(ledger.out_dir / "events" / "run.jsonl")]
    assert [(event.kind, event.unit) for event in logged] == [("done", "mine"), ("end", "")]
    assert not ledger.draft_dir.exists()


def make_folder(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "out", "me")
    ledger.make_folders()
    for token in ("me", "alive", "dead", "gone"):
        (ledger.drafts_dir / token / "unit-1").mkdir(parents=True)
    locks_dir = ledger.out_dir / "locks"
    for token in ("me", "alive"):
        write_lock(locks_dir, token, beat=1, place=this_process(token).place)
    write_lock(locks_dir, "dead", beat=1)
    os.utime(locks_dir / "task-dead.json", (0, 0))
    return ledger


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_drafts_without_a_lock_are_removed(tmp_path: Path) -> None:
    ledger = make_folder(tmp_path)
    assert remove_dead_drafts(ledger) == {"alive", "dead"}
    assert names(ledger.drafts_dir) == ["alive", "dead", "me"]


def test_a_complete_folder_keeps_nothing_of_tasks_that_are_dead(tmp_path: Path) -> None:
    ledger = make_folder(tmp_path)
    (ledger.out_dir / "claims").mkdir()
    tidy(ledger)
    assert names(ledger.out_dir / "locks") == ["task-alive.json", "task-me.json"]
    assert names(ledger.drafts_dir) == ["alive", "me"]
    assert not (ledger.out_dir / "claims").exists()


@pytest.mark.parametrize(
    ("number", "name", "ours"),
    [
        (errno.EACCES, "out/receipts/x", True),
        (errno.ENOSPC, "elsewhere", True),
        (errno.EACCES, "elsewhere", False),
    ],
)
def test_what_is_ours_is_named(tmp_path: Path, number: int, name: str, ours: bool) -> None:
    error = OSError(number, "it will not do", str(tmp_path / name))
    kind = ShardmillError if ours else OSError
    with (
        pytest.raises(kind, match="will not do") as caught,
        explain_refusals(Ledger(tmp_path / "out")),
    ):
        raise error
    assert ("cannot write to" in str(caught.value)) == ours


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_noted_the_second_raises(number: signal.Signals) -> None:
    with StopSignals(raising=False) as signals:
        assert signals.number == 0
        signal.raise_signal(number)
        assert signals.number == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_when_asked_to_the_first_raises() -> None:
    with StopSignals(raising=True) as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert signals.number == signal.SIGTERM


def test_afterwards_all_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopSignals(raising=False):
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_outside_the_main_thread_it_does_nothing() -> None:
    seen = []

    def enter() -> None:
        with StopSignals(raising=False) as signals:
            seen.append(signals.number)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [0]
