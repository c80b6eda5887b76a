"""Plans: parts make up the whole, budgets hold for all units, shared files have their size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from drivers import snapshot
from hypothesis import given
from hypothesis import strategies as st
from stages_for_tests import Lines, Unruly

from shardmill.errors import ConfigError, TooManySkips, UnitFailed
from shardmill.model.codec import to_plain
from shardmill.model.manifest import Receipt
from shardmill.model.stage import Draft, Reject, Tally, Unit
from shardmill.running.engine import Accepted, Job, read_job, write_job
from shardmill.running.plan import check_skips, collect, make_shared_files, part_of, plan_units
from shardmill.running.runner import run_stage
from shardmill.running.task import run_task
from shardmill.shards.ledger import Ledger
from shardmill.storage.path import as_path


@given(st.integers(0, 60), st.integers(1, 12))
def test_parts_are_neighbours_and_make_up_the_whole(num_units: int, num_parts: int) -> None:
    units = [Unit(name=str(i), input={}) for i in range(num_units)]
    parts = [part_of(units, (i + 1, num_parts)) for i in range(num_parts)]
    assert [unit for part in parts for unit in part] == units
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("part", [(0, 3), (4, 3), (-1, 2), (1, 0)])
def test_parts_that_are_none_are_refused(part: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="1 <= i <= n"):
        part_of([], part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Lines):
    """Units with the names that the test wants."""

    names: tuple[str, ...] = ()

    def units(self) -> Iterator[Unit]:
        return (Unit(name=name, input={}) for name in self.names)


@pytest.mark.parametrize(("names", "says"), [(("a", "b", "a"), "two units"), (("../a",), "'../a'")])
def test_names_are_checked_before_the_plan_is_written(
    tmp_path: Path, names: tuple[str, ...], says: str
) -> None:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    with pytest.raises(ConfigError, match=says):
        plan_units(ledger, Named(names=names), set)
    assert ledger.read_stage() is None


def test_collecting_again_changes_nothing(tmp_path: Path) -> None:
    run_stage(Lines(), tmp_path / "out", workers=0)
    before = snapshot(tmp_path / "out")
    ledger = Ledger(tmp_path / "out", "late")
    ledger.draft_dir.mkdir()
    units = ledger.read_units()
    assert collect(ledger, Lines(), units, Accepted(0.0)) == ledger.read_manifest()
    assert snapshot(tmp_path / "out") == before
    ledger.forget(["00003"])
    assert collect(ledger, Lines(), units, Accepted(0.0)) is None
    assert not ledger.manifest_path.exists()


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


def is_refused_as_one(counts: list[tuple[int, int, int]], rate: float) -> bool:
    num_kept, num_broken, num_filtered = (sum(column) for column in zip((0, 0, 0), *counts))
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
def test_many_units_have_the_budget_of_one(counts: list[tuple[int, int, int]], rate: float) -> None:
    receipts = [receipt_of(str(number), *found) for number, found in enumerate(counts)]
    try:
        check_skips(Path("out"), receipts, rate)
    except TooManySkips:
        assert is_refused_as_one(counts, rate)
    else:
        assert not is_refused_as_one(counts, rate)


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


UNITS = [Unit(name=f"{n}", input={}) for n in range(3)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    for unit in UNITS:
        ledger.receipt_path(unit.name).write_text("{}")
    return ledger


def test_files_have_their_size_from_the_start(ledger: Ledger) -> None:
    make_shared_files(ledger, {"a.bin": 10, "b.bin": 0}, UNITS)
    assert (ledger.out_dir / "a.bin").read_bytes() == bytes(10)
    assert (ledger.out_dir / "b.bin").read_bytes() == b""


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_lost_file_takes_all_receipts_with_it(ledger: Ledger, damage: str) -> None:
    for name in ("a.bin", "b.bin"):
        (ledger.out_dir / name).write_bytes(b"0123456789")
    make_shared_files(ledger, {"a.bin": 10, "b.bin": 10}, UNITS)
    assert ledger.receipt_path("1").exists(), "what is there stays"
    if damage == "missing":
        (ledger.out_dir / "a.bin").unlink()
    else:
        (ledger.out_dir / "a.bin").write_bytes(b"0")
    make_shared_files(ledger, {"a.bin": 10, "b.bin": 10}, UNITS)
    assert not any(ledger.receipt_path(unit.name).exists() for unit in UNITS)
    assert (ledger.out_dir / "a.bin").read_bytes() == bytes(10)
    assert (ledger.out_dir / "b.bin").read_bytes() == b"0123456789"


def test_a_store_cannot_take_ranges() -> None:
    remote = Ledger(as_path("s3://bucket/out"), "run")
    with pytest.raises(ConfigError, match=r"a\.bin hold the rows of all units.*local folder"):
        make_shared_files(remote, {"a.bin": 10}, UNITS)
    make_shared_files(remote, {}, UNITS)
