"""The budget of a folder is that of one unit which holds all its samples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stages_for_tests import Unruly

from shardmill.errors import TooManySkips, UnitFailed
from shardmill.model.codec import to_plain
from shardmill.model.manifest import Receipt
from shardmill.model.stage import Draft, Reject, Tally
from shardmill.run.job import Job
from shardmill.run.plan import check_skips
from shardmill.run.runner import run_stage
from shardmill.run.task import read_job, run_task, write_job

# (kept, broken, filtered) of a unit
BOOKS = st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 4))


def receipt_of(name: str, num_kept: int, num_broken: int, num_filtered: int) -> Receipt:
    skipped = Counter({"broken": num_broken, "asked for": num_filtered})
    return Receipt(
        unit=name,
        digest="",
        num_in=num_kept + skipped.total(),
        num_kept=num_kept,
        skipped=skipped,
        shards=(),
        broken={"broken": num_broken},
    )


def is_refused_as_one(books: list[tuple[int, int, int]], rate: float) -> bool:
    num_kept, num_broken, num_filtered = (sum(column) for column in zip((0, 0, 0), *books))
    draft, tally = Draft(Path("nowhere")), Tally(num_in=num_kept + num_broken + num_filtered)
    tally.num_kept = num_kept
    draft.file("all", "txt")
    draft.finish("all", num_samples=num_kept)
    tally.rejects += [Reject("k", "broken", "", False)] * num_broken
    tally.rejects += [Reject("k", "asked for", "", True)] * num_filtered
    try:
        tally.check(draft, max_skip_rate=rate)
    except UnitFailed:
        return True
    return False


@given(st.lists(BOOKS, max_size=6), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]))
def test_many_units_have_the_budget_of_one(books: list[tuple[int, int, int]], rate: float) -> None:
    receipts = [receipt_of(str(number), *found) for number, found in enumerate(books)]
    try:
        check_skips(Path("out"), receipts, rate)
    except TooManySkips:
        assert is_refused_as_one(books, rate)
    else:
        assert not is_refused_as_one(books, rate)


def stage_with_two_broken(tmp_path: Path) -> Unruly:
    (tmp_path / "notes").mkdir()
    return Unruly(notes=tmp_path / "notes", deeds={"00001": "skip", "00002": "skip"})


def test_raising_the_limit_completes_without_doing_a_unit_again(tmp_path: Path) -> None:
    stage, out = stage_with_two_broken(tmp_path), tmp_path / "out"
    with pytest.raises(TooManySkips, match=r"of its 8 samples 2 are broken.*2 x broken sample"):
        run_stage(stage, out, workers=0, max_skip_rate=0.1)
    assert not (out / "manifest.json").exists() and len(list((out / "receipts").iterdir())) == 6
    report = run_stage(stage, out, workers=0, max_skip_rate=0.25)
    assert report.complete and report.num_done == 0


def test_the_last_task_keeps_to_the_budget_too(tmp_path: Path) -> None:
    stage, out = stage_with_two_broken(tmp_path), tmp_path / "out"
    run_stage(stage, out, workers=0, part=(1, 10**9))
    job = Job(stage=to_plain(stage), out_dir=str(out), token="", retries=0, max_skip_rate=0.1)
    with pytest.raises(TooManySkips):
        run_task(read_job(write_job(job)), workers=1)
    assert not (out / "manifest.json").exists()
