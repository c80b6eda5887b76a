"""Mending the input keeps what did not change, believes nothing else, and survives every crash."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from drivers import signal_quietly, snapshot, start_driver
from hypothesis import given, settings
from hypothesis import strategies as st
from stages_for_tests import Copies, Lines

from shardmill.errors import StaleError
from shardmill.model.codec import to_plain
from shardmill.model.manifest import stage_digest
from shardmill.running.engine import Job, read_job, write_job
from shardmill.running.events import Event
from shardmill.running.lock import FolderLock, task_lock_name
from shardmill.running.plan import plan_units
from shardmill.running.runner import remove_dead_drafts, retry_rejects, run_stage
from shardmill.running.task import run_task
from shardmill.shards.ledger import Ledger, set_aside
from shardmill.stages.check.folder import check_folder
from shardmill.storage.files import Disk


def fill(folder: Path, **files: str) -> Copies:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
    return Copies(folder=folder)


def from_scratch(stage: Copies, out: Path) -> dict[str, bytes]:
    shutil.rmtree(out, ignore_errors=True)
    run_stage(stage, out, workers=0)
    return snapshot(out)


def test_only_the_repaired_unit_is_worked(tmp_path: Path) -> None:
    stage, out = fill(tmp_path / "in", a="1", b="bad", c="3"), tmp_path / "out"
    assert len(run_stage(stage, out, workers=0).failures) == 1
    fill(tmp_path / "in", a="1", b="2", c="3")
    events: list[Event] = []
    report = run_stage(stage, out, workers=0, on_event=events.append)
    assert report.complete and (report.num_done, report.num_done_before) == (1, 2)
    said = [event.message for event in events if event.kind == "wait"]
    assert said == ["inputs changed: 2 of 3 units are done and stay"]
    assert snapshot(out) == from_scratch(stage, tmp_path / "calm")


def test_a_finished_folder_refuses_other_inputs(tmp_path: Path) -> None:
    stage, out = fill(tmp_path / "in", a="1", b="2"), tmp_path / "out"
    run_stage(stage, out, workers=0)
    before = snapshot(out)
    fill(tmp_path / "in", a="1", b="changed")
    with pytest.raises(StaleError, match=r"changed: b\n.*Write to another folder"):
        run_stage(stage, out, workers=0)
    with pytest.raises(StaleError, match="changed: b"):
        retry_rejects(out, stage, ["dash"])
    assert snapshot(out) == before


FILES = st.dictionaries(
    st.sampled_from("abcdef"), st.sampled_from(["bad", "1", "2", "22", "-\n1", "1\n-"]), max_size=6
)
STEPS = st.lists(st.tuples(FILES, st.integers(1, 3), st.booleans()), max_size=5)


@settings(max_examples=25, deadline=None)
@given(STEPS, FILES)
def test_edits_between_runs_end_in_the_bytes_of_one_run(
    steps: list[tuple[dict[str, str], int, bool]], last: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place, out = Path(folder) / "in", Path(folder) / "out"
        for files, part, again in steps:
            stage = fill(place, **files, never="bad")  # so that it is not finished
            run_stage(stage, out, workers=0, part=(part, 3))
            assert check_folder(out).broken_units == ()
            ledger = Ledger(out)
            assert ledger.read_units() == list(stage.units())
            done = [r for r in ledger.valid_receipts(ledger.read_units(), stage_digest(stage)) if r]
            assert {receipt.unit for receipt in done} == ledger.receipt_names()
            if again:
                retry_rejects(out, stage, ["dash"])
        stage = fill(place, **{name: text.replace("bad", "good") for name, text in last.items()})
        assert run_stage(stage, out, workers=0).complete
        assert snapshot(out) == from_scratch(stage, Path(folder) / "calm")


class PowerCut(Exception):
    """The process ends here."""


@dataclass
class FailingDisk(Disk):
    """Ends the process before a call."""

    num_left: int

    def write(self, path: Path, content: bytes) -> None:
        self._count()
        super().write(path, content)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)

    def _count(self) -> None:
        self.num_left -= 1
        if self.num_left < 0:
            raise PowerCut


OLD = {"a": "1", "b": "bad", "c": "-\n3", "d": "4"}
NEW = {"a": "1", "b": "2", "c": "-\n33"}


@pytest.mark.parametrize("goes_back", [False, True])
def test_planning_anew_can_end_at_any_call(tmp_path: Path, goes_back: bool) -> None:
    """What follows is a run with the new inputs, or with those of before."""
    then = NEW | {"b": "2"} if not goes_back else OLD | {"b": "other"}
    calm = from_scratch(fill(tmp_path / "in", **then), tmp_path / "calm")
    num_calls, was_cut = 0, True
    while was_cut:
        out = tmp_path / f"out-{num_calls}"
        stage = fill(tmp_path / "in", **OLD)
        run_stage(stage, out, workers=0)
        fill(tmp_path / "in", **NEW)
        was_cut = cut_planning(stage, out, num_calls)
        if goes_back:
            fill(tmp_path / "in", **OLD)
            run_stage(stage, out, workers=0)
            assert Ledger(out).read_units() == list(stage.units())
        fill(tmp_path / "in", **then)
        assert run_stage(stage, out, workers=0).complete
        assert snapshot(out) == calm
        num_calls += 1
    assert num_calls > 8


def cut_planning(stage: Copies, out: Path, num_calls: int) -> bool:
    ledger = Ledger(out, "cut", FailingDisk(num_calls))
    ledger.draft_dir.mkdir()
    try:
        plan_units(ledger, stage, set)
    except PowerCut:
        return True
    return False


def test_a_plan_that_others_work_on_stays(tmp_path: Path) -> None:
    stage, out = fill(tmp_path / "in", a="1", b="bad"), tmp_path / "out"
    run_stage(stage, out, workers=0)
    before = snapshot(out)
    fill(tmp_path / "in", a="1", b="2")
    ledger = Ledger(out, "late")
    ledger.draft_dir.mkdir()
    looks = iter([set[str](), {"a task that began meanwhile"}])
    with pytest.raises(StaleError, match="at work there now"):
        plan_units(ledger, stage, lambda: next(looks))
    assert snapshot(out) == before
    ledger.draft_dir.rmdir()
    other = FolderLock(out / "locks", "part-2-of-2", "somebody")
    with other, pytest.raises(StaleError, match="at work there now"):
        run_stage(stage, out, workers=0, part=(1, 2))
    assert run_stage(stage, out, workers=0).complete


def test_tasks_work_on_the_new_plan_or_not_at_all(tmp_path: Path) -> None:
    stage, out = fill(tmp_path / "in", a="1", b="bad", c="3"), tmp_path / "out"
    run_stage(stage, out, workers=0)
    job = Job(stage=to_plain(stage), out_dir=str(out), token="", retries=0, max_skip_rate=0.0)
    path = write_job(job)
    assert run_task(read_job(path), workers=1).num_left == 0  # the failure is over too
    fill(tmp_path / "in", a="1", b="2", c="33", d="4")
    ledger = Ledger(out, "planner")
    ledger.withdraw_inputs()
    with pytest.raises(StaleError, match="run the command that makes the folder again"):
        run_task(read_job(path), workers=1)
    assert run_stage(stage, out, workers=0, part=(1, 10**9)).num_done == 0
    report = run_task(read_job(path), workers=1)
    assert report.run.complete and report.run.num_done == 3
    found = {name: data for name, data in snapshot(out).items() if not name.startswith("jobs/")}
    assert found == from_scratch(stage, tmp_path / "calm")


def test_tasks_and_new_plans_lock_each_other_out(tmp_path: Path) -> None:
    stage, out = fill(tmp_path / "in", a="1", b="bad"), tmp_path / "out"
    run_stage(stage, out, workers=0)
    fill(tmp_path / "in", a="1", b="2")
    ledger = Ledger(out, "planner")
    task = FolderLock(out / "locks", task_lock_name("somebody"), "somebody")
    with task, pytest.raises(StaleError, match="at work there now"):
        plan_units(ledger, stage, lambda: remove_dead_drafts(ledger))


def test_what_was_set_aside_is_kept_for_units_that_did_not_change(tmp_path: Path) -> None:
    stage, out = fill(tmp_path / "in", a="-\n1", b="bad", c="-\n3"), tmp_path / "out"
    run_stage(stage, out, workers=0)
    ledger = Ledger(out, "again")
    ledger.draft_dir.mkdir()
    receipts = [r for r in ledger.read_receipts(ledger.read_units(), stage_digest(stage)) if r]
    set_aside(ledger, receipts)
    fill(tmp_path / "in", a="-\n1", b="bad", c="-\n33")
    plan_units(ledger, stage, set)
    assert [path.name for path in (out / "earlier").iterdir()] == ["00000.json"]
    assert [path.name for path in (out / "shards").iterdir()] == ["00000-3.txt"]


def test_a_stage_that_does_not_know_its_units_by_content_refuses(tmp_path: Path) -> None:
    run_stage(Lines(num_units=4), tmp_path / "out", workers=0, part=(1, 2))
    ledger = Ledger(tmp_path / "out", "late")
    ledger.draft_dir.mkdir()
    ledger.write_inputs({"count": 5})
    with pytest.raises(StaleError, match="changed: count"):
        plan_units(ledger, Lines(num_units=4), set)


def test_killed_runs_over_edited_inputs_end_in_the_bytes_of_one_run(tmp_path: Path) -> None:
    rng, out = random.Random(1), tmp_path / "out"
    files = {f"{number:02d}": str(number) for number in range(24)}
    for _ in range(8):
        files[rng.choice(list(files))] = rng.choice(["bad", "other", "-\n1"])
        stage = fill(tmp_path / "in", **files, never="bad")
        driver = start_driver(stage, out, workers=0)
        time.sleep(rng.uniform(0.2, 0.7))
        signal_quietly(-driver.pid, signal.SIGKILL)
        driver.communicate()
        assert not (out / "stage.json").exists() or check_folder(out).broken_units == ()
    stage = fill(tmp_path / "in", **{name: text.replace("bad", "") for name, text in files.items()})
    assert run_stage(stage, out, workers=0).complete
    assert snapshot(out) == from_scratch(stage, tmp_path / "calm")
